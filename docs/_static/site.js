// Boxes that are wider than the window scroll sideways. Without a mouse, keys scroll a box that has the focus.
const boxes = document.querySelectorAll("pre, .table-wrapper, div.math");
const update = () => {
  for (const box of boxes) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
update();
addEventListener("resize", update);

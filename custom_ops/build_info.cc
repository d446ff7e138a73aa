// What the library was built from, so that Python can tell a stale one before loading its ops.

extern "C" const char* tf_onebit_build_info() {
  return "version=" TF_ONEBIT_VERSION " tensorflow=" TENSORFLOW_VERSION;
}

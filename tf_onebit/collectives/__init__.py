"""Who carries messages between workers: requests, and the drivers that answer them."""

"""Whether selection pays: costs measured on this machine, and predictions from them."""

"""Networks as plain modules written for one member; `packing` adds the member axis outside them."""

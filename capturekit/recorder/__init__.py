"""``ck.capture()``: the way in, the way out, forks, decisions on the device, graphs in graphs."""

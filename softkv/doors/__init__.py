"""Ways into softkv from other libraries, each a module of its own that imports that library. Nobody imports these."""

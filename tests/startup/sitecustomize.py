"""Every Python that tests start imports this (`tests/conftest.py`).

Importing torch and making an optimizer takes 2.3 s of a core, of which the garbage collector takes 0.7 s: it starts
after every 700 new objects. Hundreds of programs that tests start do so.
"""

import gc

gc.set_threshold(10_000)

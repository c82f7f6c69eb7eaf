"""Read by each Python that tests start: to look for garbage in what it imports, torch say, is a tenth of its time."""

import gc

gc.set_threshold(50_000)

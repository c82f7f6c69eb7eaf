"""``python -m tvm_sparse``: the command line."""

import sys

from tvm_sparse.cli.main import main

sys.exit(main())

"""``python -m ddp_doctor``"""

import os
import sys

if not getattr(sys.flags, "safe_path", False) and not os.path.isdir(os.path.join(sys.path[0], "ddp_doctor")):
    del sys.path[0]  # the working directory, and not where we are installed: a click.py that lies in it is not ours

from ddp_doctor.start import main

main()

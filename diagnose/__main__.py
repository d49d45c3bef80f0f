"""``python -m ddp_doctor``"""

from ddp_doctor.cli import main

main()

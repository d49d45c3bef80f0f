#!/bin/sh
# Slurm Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/50-ddp-doctor.sh): look at the node before a job gets it.
#
# Slurm drains a node whose prolog ends with any other status than 0, and starts the job elsewhere. So only a fault of the
# node ends this one badly: status 1 is a finding, 2 and 3 say nothing about the node. A prolog has no PATH.
# What it prints goes to slurmd's log. Nothing is sent, and torch is not imported; it takes about half a second.
doctor=${DDP_DOCTOR:-/opt/ddp-doctor/bin/ddp-doctor}
"$doctor" run --scope node --profile quick --deadline 20 --brief
[ $? -ne 1 ]

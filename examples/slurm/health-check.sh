#!/bin/sh
# Slurm HealthCheckProgram: looks at the node every so often, and drains it with the finding as the reason.
#
#   slurm.conf:   HealthCheckProgram=/etc/slurm/ddp-doctor-health-check.sh
#                 HealthCheckInterval=300
#                 HealthCheckNodeState=ANY,CYCLE
#
# slurmd runs it as root on every node. It takes no node back into service: that stays a person's decision.
doctor=${DDP_DOCTOR:-/opt/ddp-doctor/bin/ddp-doctor}
scontrol=${SCONTROL:-scontrol}
node=${SLURMD_NODENAME:-$(hostname -s)}

line=$("$doctor" run --scope node --profile quick --deadline 45 --brief)
if [ $? -eq 1 ]; then
    "$scontrol" update "nodename=$node" state=drain "reason=ddp-doctor: $line"
fi
exit 0

#!/bin/sh
# The same line on every node, as for the training itself: the nodes meet in torch's store, node 0 prints the one report,
# and every torchrun ends with its exit status. Without ssh, without Slurm.
#
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 sh torchrun.sh        (on the other node: NODE_RANK=1)
set -eu
torchrun --nnodes "$NNODES" --node_rank "$NODE_RANK" --nproc_per_node 1 \
    --master_addr "$MASTER_ADDR" --master_port "${MASTER_PORT:-29500}" -m ddp_doctor run

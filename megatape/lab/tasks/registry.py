"""Table of the evaluation tasks that `megatape evaluate` selects by name: one line each.

Like megatape/registry.py, it imports no torch, and a module of the user's own may add entries.
"""

from megatape.entries import Entry

# Evaluation tasks, subclasses of megatape.lab.tasks.engine.task.Task.
TASKS: dict[str, Entry] = {
    "perplexity": Entry(
        "megatape.lab.tasks.perplexity.task:Perplexity", "perplexity at several context lengths, on the same text"
    ),
    "passkey": Entry("megatape.lab.tasks.passkey.task:Passkey", "retrieval of a number from a long text"),
    "scrolls": Entry(
        "megatape.lab.tasks.scrolls.task:Scrolls", "questions and summaries of SCROLLS, scored by F1, exact match or ROUGE"
    ),
    "lm-eval": Entry("megatape.lab.tasks.lm_eval.task:LmEval", "tasks of lm-eval: MMLU, ARC, HellaSwag and others"),
    "addition": Entry(
        "megatape.lab.tasks.addition:Addition", "exact match on addition problems, for every pair of operand lengths"
    ),
}

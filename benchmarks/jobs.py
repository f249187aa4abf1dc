"""The jobs that are timed, by the words under which the tables show them."""

LEARN = "learn one"
SCORE = "score one"
BOTH = "learn one, score a fresh one"
PREQUENTIAL = "score one, then learn it"
LEARN_ROWS = "learn rows, per row"
PREQUENTIAL_ROWS = "score then learn rows, per row"
MERGE_LOSS = "merge one, be ready to give a loss"
MERGE_SCORE = "merge one, be ready to give a score"
SUM = "sum 1 000 contributions"

JOBS = (
    *(LEARN, SCORE, BOTH, PREQUENTIAL, LEARN_ROWS, PREQUENTIAL_ROWS),
    *(MERGE_LOSS, MERGE_SCORE, SUM),
)

OURS = "edgemerge"
BY_NUMPY = "edgemerge, without the kernel"
RECEIVED = "edgemerge, received sums"
REJECTING = "edgemerge, rejection"
FORGETTING = "edgemerge, forgetting"
ALL_THREE = "edgemerge, received sums, rejection and forgetting"
BY_RIVER = "edgemerge, River's adapter"
PUBLISHED = "NumPy, published style"
TEXTBOOK = "NumPy, textbook"

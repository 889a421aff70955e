"""Questions that a lab database answers with one query each: those of its page, of ``lab query`` and of Datasette."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and its query.

    Attributes:
      title: the question.
      note: a phrase about the answer.
      sql: the query, with a line break at its end.
    """

    title: str
    note: str
    sql: str


QUESTIONS = {
    "losers": Question(
        title="Which configs lose most?",
        note="The slowest configs, each at its best, against the winner of their problem",
        sql="""\
SELECT min(t.median_us) / w.median_us AS times_slower, t.kernel, direction, w.point, t.config
FROM trial AS t JOIN winners AS w USING (signature, direction, device) WHERE t.status = 'ok' AND t.part = ''
GROUP BY signature, direction, device, t.kernel, t.config ORDER BY times_slower DESC LIMIT 10;
""",
    ),
    "failures": Question(
        title="Why do configs fail, by kernel?",
        note="The reasons of failures, the commonest first",
        sql="""\
SELECT kernel, status, reason, count(*) AS trials
FROM failures GROUP BY kernel, status, reason ORDER BY trials DESC LIMIT 20;
""",
    ),
    "minutes": Question(
        title="Where did the minutes go?",
        note="By kernel, in seconds; group by `config` instead for the time of each config",
        sql="""\
SELECT kernel, count(*) AS trials, sum(compile_ms) / 1e3 AS compile_s, sum(prove_ms) / 1e3 AS prove_s,
       sum(run_ms) / 1e3 AS run_s
FROM trial GROUP BY kernel ORDER BY coalesce(compile_s, 0) + coalesce(prove_s, 0) + coalesce(run_s, 0) DESC;
""",
    ),
    "noise": Question(
        title="How noisy are the times?",
        note="By config; the view has one row a sample",
        sql="""\
SELECT kernel, direction, stage, config, count(*) AS samples, avg(us) AS mean_us, max(us) / min(us) AS spread,
       signature, device
FROM samples GROUP BY kernel, direction, stage, config, signature, device ORDER BY spread DESC LIMIT 20;
""",
    ),
    "rivals": Question(
        title="Who beats whom?",
        note="Each winner, and the best config of every other kernel behind it",
        sql="""\
SELECT w.point, w.direction, w.kernel AS winner, other.kernel AS beaten, other.median_us / w.median_us AS by
FROM winners AS w JOIN decision AS other USING (signature, direction, device)
WHERE other.rank > 0 ORDER BY by DESC;
""",
    ),
}

"""What a report draws of a run: each chart, and the numbers that it takes."""

from typing import Any

TIMES = {
    "sampling": "timing_s/gen",
    "scoring": "timing_s/score",
    "log-probs": "timing_s/old_log_prob",
    "values": "timing_s/values",
    "advantages": "timing_s/adv",
    "update": "timing_s/update_actor",
    "host": "timing_s/host",
}

# Series are {label: "axis name"}; {mean}, {best} and {totals} are filled in.
CHARTS: tuple[dict[str, Any], ...] = (
    dict(
        title="Accuracy",
        about=(
            "Right responses among all that were sampled for training, and on"
            " held-out prompts, with 95% intervals."
        ),
        unit="% of responses",
        percent=True,
        series={
            "training": "rl train/accuracy",
            "held out, {mean}": "evaluate {mean}",
        },
    ),
    dict(
        title="Greedy, majority, pass@k",
        about=(
            "Held-out prompts: one response at temperature 0, a vote, and at"
            " least one of k right: what sampling can still find."
        ),
        unit="% of prompts",
        percent=True,
        series={
            "{best}": "evaluate {best}",
            "greedy": "evaluate greedy",
            "{maj}": "evaluate {maj}",
        },
    ),
    dict(
        title="Reward",
        about="Mean over the responses trained on, penalties included.",
        unit="reward",
        series={"mean": "rl critic/rewards/mean"},
    ),
    dict(
        title="Response length",
        about="Mean number of tokens, the end mark included.",
        unit="tokens",
        series={
            "trained on": "rl response_length/mean",
            "held out": "evaluate val-aux/response_length/mean",
        },
    ),
    dict(
        title="Cut off",
        about="Responses longer than allowed; they count as wrong.",
        unit="% of responses",
        percent=True,
        series={
            "trained on": "rl response_length/clip_ratio",
            "held out": "evaluate val-aux/response_length/clip_ratio",
        },
    ),
    dict(
        title="Entropy",
        about=(
            "How undecided the policy is about the next token; near 0 it"
            " explores no more."
        ),
        unit="nats a token",
        series={"policy": "rl actor/entropy"},
    ),
    dict(
        title="Clipping",
        about=(
            "Tokens whose loss the clip of the ratio decides, and those that"
            " the lower bound of dual clip decides."
        ),
        unit="% of tokens",
        percent=True,
        series={
            "clip": "rl actor/pg_clipfrac",
            "dual clip": "rl actor/pg_clipfrac_lower",
        },
    ),
    dict(
        title="KL of the update",
        about=(
            "How far the policy moved from the one that sampled, and, with a"
            " KL loss, from the reference."
        ),
        unit="nats a token",
        series={
            "to the sampling policy": "rl actor/ppo_kl",
            "to the reference": "rl actor/kl_loss",
        },
    ),
    dict(
        title="Gradient norm",
        about="Before clipping; mean over the updates of a step.",
        unit="norm",
        series={
            "policy": "rl actor/grad_norm",
            "critic": "rl critic/grad_norm",
        },
    ),
    dict(
        title="Effective sample size",
        about=(
            "Share of the tokens that importance weights leave; 1 on the policy"
            " that sampled."
        ),
        unit="of 1",
        series={
            "mean": "rl actor/ess",
            "least of a step": "rl actor/ess_min",
        },
    ),
    dict(
        title="Staleness",
        about="Optimizer steps between the sampling of a token and its use.",
        unit="updates",
        series={
            "mean": "rl actor/staleness",
            "largest": "rl actor/staleness_max",
        },
    ),
    dict(
        title="Explained variance",
        about=(
            "Of the returns by the critic, on responses it has not learned"
            " from: 1 is perfect, 0 no better than a constant."
        ),
        unit="of 1",
        series={"critic": "rl critic/vf_explained_var"},
    ),
    dict(
        title="Value loss",
        about="Of the critic; mean over the updates of a step.",
        unit="loss",
        series={"critic": "rl critic/vf_loss"},
    ),
    dict(
        title="Value pretraining",
        about="Of the critic before RL, step by step, the policy fixed.",
        unit="of 1",
        series={
            "explained variance": "value critic/vf_explained_var",
            "value loss": "value critic/vf_loss",
        },
    ),
    dict(
        title="Prompts by outcome",
        about=(
            "Of all prompts sampled: only the mixed ones, some responses right"
            " and some wrong, carry signal."
        ),
        unit="% of prompts",
        percent=True,
        stack=True,
        series={
            "mixed": "rl train/mixed",
            "all wrong": "rl train/all_wrong",
            "all right": "rl train/all_right",
        },
    ),
    dict(
        title="Effective prompts",
        about=(
            "Prompts in the batch that carry signal, those kept from the step"
            " before, and places left empty."
        ),
        unit="prompts a step",
        series={
            "with signal": "rl train/groups_with_signal",
            "kept": "rl train/groups_kept",
            "missing": "rl train/groups_missing",
        },
    ),
    dict(
        title="Generation rounds",
        about="Rounds of sampling until the batch was full.",
        unit="rounds a step",
        series={"rounds": "rl train/generation_rounds"},
    ),
    dict(
        title="Sampler against trainer",
        about=(
            "Mean difference of the two log-probs of a sampled token; nothing"
            " but rounding, if both are right."
        ),
        unit="nats a token",
        series={"difference": "rl rollout/sampler_trainer_kl"},
    ),
    dict(
        title="Time of a step",
        about=(
            "Cut at three times the median: steps that compile take longer."
            " {totals}"
        ),
        unit="seconds",
        stack=True,
        cap=True,
        series={k: f"rl {v}" for k, v in TIMES.items()},
    ),
    dict(
        title="SFT loss",
        about=(
            "Negative log-likelihood of the demonstrations: first the skill,"
            " then the habits."
        ),
        unit="nats a token",
        series={"skill": "skill sft/loss", "habits": "habits sft/loss"},
    ),
)

"""What a feature says of its fields, beyond their values, by a mark.

The tables of the core's own fields stand where they are read, such as
`resume_rules.FREE`. A feature has one table of all marks of its fields, because
it is read in all of these places; `feature.marked` joins the tables.
"""

# Names of fields, or beginnings of them, such as "lora.".
NAMES = {
    "all_sets": "if it is set, each evaluation has all held-out sets",
    "elsewhere": "an evaluation may have other values than the run",
    "first_critic": "each step reads the critic that RL starts from",
    "free": "a run may resume with other values: no number of it changes",
    "imitates": "above 0, the run learns from responses of rows, as SFT does",
    "lag": "RL steps, at most, from the sampling of a batch to its update",
    "less_memory": "with it a run needs less memory",
    "machine": "of the machine: changes no number of a run, and is in no card",
    "mixtures": "has a mixture of styles, as sft.mixture has",
    "movable": "a path, which may change where its content is equal",
    "older_groups": "how many groups of a batch are of earlier steps",
    "older_policy": "above 0, updates see rows of an older policy",
    "policy": "a run must share it with the run whose policy it continues",
    "published": "a model card may have its text",
    "replayed": "gives the batch of a step another credit or another update",
    "sampled": "decides which responses are sampled, and how they are rewarded",
    "samplers": "how many devices only sample, the last ones",
    "sources": "has sources of rows, as data.train has; files are movable",
    "teaches": "if it is set, each response has a signal without a reward",
    "types": "of a function that groups prompts by the type of their problem",
}
# Names of fields, each with a value.
VALUES = {
    "code": "names code, as task.name does: the values that name none",
    "corrects": "a value that weighs rows by the policy that sampled them",
    "content": "a path -> a hash of what counts of its content",
    "evaluated": "its value where a model is only evaluated",
    "learned_rows": "a number of rows that are learned from, and its switch",
    "not_generated": "why --stage=generate cannot sample with it",
    "not_replayed": "why --stage=replay cannot change it",
    "one_process": "why it is off in a run of several processes",
    "other_names": "(by the name in another library:) the field",
    "progress": "a value -> whether steps depend on the number of all steps",
    "other_reference": "whether a KL compares with another model or prompt",
    "readers": "what reads its text from a config, and a field that this needs",
    "shown": "what the report says of its value, if it is set",
    "smoke": "its largest value in FILE:smoke",
    "unreplayed": "why no step of a run with it can be replayed",
    "unshared": "why packed rows cannot hold the prompt of a group once",
}
MARKS = NAMES | VALUES

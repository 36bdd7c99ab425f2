"""Cards of the surrogates: every surrogate, its keywords, its formula."""

from conftest import data_of_page

from bench import results
from bench.tools import cards
from rl_reason.base import functions


def test_every_surrogate_has_a_card_with_its_keywords():
  assert set(cards.CARDS) == set(functions.names("surrogate"))
  for name, card in cards.CARDS.items():
    takes = functions.signature("surrogate", name).arguments
    assert set(card["sliders"]) == set(takes) - {"log_ratio_max"}
  data = data_of_page(cards.page(), "cards", results.ROOT / "bench" / "tools")
  found = {card["name"]: card["settings"] for card in data["cards"]}
  assert found["ppo"]["dapo.py"] == dict(
      clip_low=0.2, clip_high=0.28, dual_clip=10.0
  )
  assert found["gspo"]["gspo.py"] == dict(clip_low=0.03, clip_high=0.04)
  assert found["reinforce"]["rloo.py"] == {}
  assert found["ppo_sequence_mask"]["deepseek_v3_2.py"] == dict(
      clip_low=0.2, clip_high=0.2, delta=0.5
  )
  # A surrogate is the choice of at least one config.
  assert all(len(settings) > 1 for settings in found.values())


def test_a_card_whose_loss_depends_on_the_probability_has_a_slider_for_it():
  for name, card in cards.CARDS.items():
    losses = {cards.of_package(name, 1.0, 1, old)[0] for old in (0.1, 0.2)}
    assert ("p_old" in card) == (len(losses) > 1), name


def test_loss_and_derivative_by_hand():
  assert cards.of_package("ppo", 1.5, 1, 0.4) == (-1.2000000476837158, 0)
  dual = cards.of_package("ppo", 5, -1, 0.1, dual_clip=3.0)
  assert dual == (3, 0)


def test_the_committed_page_is_of_the_package():
  path = results.RESULTS / f"{cards.NAME}.html"
  assert path.read_text() == cards.page()

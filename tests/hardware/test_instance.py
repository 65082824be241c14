"""Laws of `matches` and `nearest`."""

from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.hardware.instance import Offer, Query, by_gpu_price, by_price, matches, nearest
from tests.hardware.strategies import OFFERS, queries

SOME_OFFERS = st.lists(OFFERS, min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(SOME_OFFERS, st.data())
def test_giving_up_a_side_never_loses_an_offer(offers: list[Offer], data: st.DataObject) -> None:
    query = data.draw(queries(offers))
    for side in fields(Query):
        opened = replace(query, **{side.name: True if side.name == "retired" else None})
        assert all(matches(offer, opened) for offer in offers if matches(offer, query))


@settings(deadline=None, max_examples=60)
@given(SOME_OFFERS, st.data(), st.floats(0, 1))
def test_tightening_a_bound_never_adds_an_offer(offers: list[Offer], data: st.DataObject, factor: float) -> None:
    query = data.draw(queries(offers))
    tighter = replace(
        query,
        max_usd_per_h=None if query.max_usd_per_h is None else query.max_usd_per_h * factor,
        min_gpu_count=(query.min_gpu_count or 1) + 1,
    )
    assert all(matches(offer, query) for offer in offers if matches(offer, tighter))


@settings(deadline=None, max_examples=60)
@given(SOME_OFFERS)
def test_the_open_query_matches_all_that_is_sold(offers: list[Offer]) -> None:
    assert all(matches(o, Query()) == (o.instance.retired_on is None) for o in offers)
    assert all(matches(o, Query(retired=True)) for o in offers)


@settings(deadline=None, max_examples=60)
@given(SOME_OFFERS, st.data())
def test_nearest_offers_match_once_the_sides_are_given_up(offers: list[Offer], data: st.DataObject) -> None:
    query = data.draw(queries(offers))
    if any(matches(offer, query) for offer in offers):
        return
    found = nearest(offers, query)
    assert found  # with every side given up, everything matches
    for near in found:
        opened = {side: True if side == "retired" else None for side in near.without}
        assert matches(near.offer, replace(query, **opened))


@settings(deadline=None, max_examples=60)
@given(SOME_OFFERS)
def test_sorting(offers: list[Offer]) -> None:
    prices = [offer.usd_per_h for offer in sorted(offers, key=by_price)]
    assert prices == sorted(prices)
    per_gpu = [offer.usd_per_gpu_h for offer in sorted(offers, key=by_gpu_price)]
    assert per_gpu == sorted(per_gpu)

"""When a dead child is started again."""

import pytest

from pillion.ops.restarts import HEALTHY_SECONDS, MOST_QUICK_DEATHS, Restarts


def test_pauses_grow_and_the_last_quick_death_gives_up() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(MOST_QUICK_DEATHS):
        restarts, pause = restarts.died(lived=0.1, code=1)
        pauses.append(pause)
    assert pauses[-1] is None
    grown = [pause for pause in pauses if pause is not None]
    assert len(grown) == MOST_QUICK_DEATHS - 1
    assert grown == sorted(set(grown))


def test_a_long_life_clears_the_count() -> None:
    restarts = Restarts()
    for _ in range(50):
        restarts, first = restarts.died(lived=0.1, code=-9)
        restarts, second = restarts.died(lived=HEALTHY_SECONDS, code=-9)
        assert first is not None
        assert second is not None
    assert restarts == Restarts()


def test_a_stack_that_has_served_is_not_given_up() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(5 * MOST_QUICK_DEATHS):
        restarts, pause = restarts.died(lived=0.1, code=-9, served=True)
        pauses.append(pause)
    assert None not in pauses
    assert max(pause for pause in pauses if pause) == 5.0
    assert restarts.died(lived=0.1, code=2, served=True)[1] is None


@pytest.mark.parametrize("lived", [1.0, HEALTHY_SECONDS, 600.0])
def test_a_wrong_setting_is_not_tried_again_however_long_loading_took(lived: float) -> None:
    assert Restarts().died(lived, code=2)[1] is None

"""The losses of choices by times that are off: none without an error, more with a larger one."""

import choice_errors
import numpy as np


def test_choices_lose_more_the_less_exact_their_times_are():
    times = [np.array([10.0, 10.5, 12.0]), np.array([3.0, 3.3]), np.array([7.0])] * 100
    losses = [
        choice_errors.loss_of_errors(times, error, np.random.default_rng(0)).mean() for error in (0.0, 0.02, 0.05, 0.2)
    ]
    assert losses[0] == 1.0
    assert losses == sorted(set(losses))


def test_choices_are_judged_on_times_of_the_menu(tmp_path):
    path = tmp_path / "races.jsonl"
    signature = "flash_attention/v1 b=1 t=64 s=64 n=2 k=2 h=64 v=64 dtype=bfloat16"
    off, on = '["triton",[128,16,8,1],3.0]', '["triton",[64,64,4,3],4.0]'
    twice = '["triton_hopper",[128,4,2,2,false,false],8.0],["triton_hopper",[128,4,2,2,false,true],8.4]'
    path.write_text(f'{{"signature":"{signature}","direction":"fwd","times":[{off},{on},{twice}]}}\n')
    (us,) = choice_errors.menu_times((path,), "fwd")
    assert us.tolist() == [4.0, 8.0]
    ((of, difference),) = choice_errors.twins((path,))
    assert (of, round(difference, 4)) == (8.0, round(float(np.log(8.4 / 8.0)), 4))

"""The two hot loops, compiled by numba: one job through random losses, and one through a recorded trace.

Both follow the same job. It works towards its next checkpoint, saves, and is disturbed by losses and arrivals:

    wait        a loss stops the job; it goes on from the last checkpoint when the fleet is whole again
    shrink      it goes on from the last checkpoint with the machines that are left, and takes new ones in
    carry on    the others go on, nothing is redone (asynchronous workers, fault-tolerant replica groups)

Work is in seconds at full speed. A machine that is lost is billed up to its loss, a new one from when it is there.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np
from numba import njit

from stallwise.model.splitmix import splitmix64

WAIT, SHRINK, CARRY_ON = 0, 1, 2
NO_REPLACEMENT, SPOT_REPLACEMENT, ON_DEMAND_REPLACEMENT = 0, 1, 2


def _draw_time(at_s, cdf, u):
    """Time at which the distribution reaches `u`, by inverse lookup; infinite beyond the table."""
    last = len(cdf) - 1
    if u >= cdf[last]:
        return np.inf
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        if cdf[middle] <= u:
            low = middle
        else:
            high = middle
    rise = cdf[high] - cdf[low]
    fraction = (u - cdf[low]) / rise if rise > 0 else 0.0
    return at_s[low] + fraction * (at_s[high] - at_s[low])


def _paid(at_s, relative, paid_s, from_s, to_s):
    """Seconds at the base price that cost as much as the time between two moments of the price series."""
    i = max(0, np.searchsorted(at_s, from_s, side="right") - 1)
    j = max(0, np.searchsorted(at_s, to_s, side="right") - 1)
    return paid_s[j] + relative[j] * (to_s - at_s[j]) - paid_s[i] - relative[i] * (from_s - at_s[i])


try:
    _random = njit(cache=True, nogil=True, inline="always")(splitmix64)
    _draw_time = njit(cache=True, nogil=True)(_draw_time)
    _paid = njit(cache=True, nogil=True)(_paid)
    _KEPT = True
except RuntimeError:  # nowhere to keep the compiled code: compile it in every process
    _random = njit(nogil=True, inline="always")(splitmix64)
    _draw_time = njit(nogil=True)(_draw_time)
    _paid = njit(nogil=True)(_paid)
    _KEPT = False


def _simulate(
    first, last, seed, spot, kind, weight, spot_rate, full_rate, other_rate, life_s, life_cdf, age_s, age_cdf,
    wait_s, wait_cdf, price_at, price, price_paid, price_sizes, price_starts, on_demand_size, begin, work, interval,
    save, provision, restart, mode, redo, replace, least, deadline, margin, limit,
    finish, cost, losses, redone, switched,
):  # fmt: skip
    """Replays `first` to `last`: finish (infinite beyond `limit`), cost, losses, work redone, on-demand at the end.

    Spot machines beyond the size at a price are let go; they are not lost.
    """
    n = len(kind)
    steady, rank = 0, np.zeros(n, np.int64)
    for i in range(n):
        rank[i] = i - steady
        steady += 0 if spot[i] else 1
    for replay in range(first, last):
        state = np.uint64(seed) + np.uint64(replay) * np.uint64(0xD1342543DE82EF95)
        event, running, rate, born = np.empty(n), np.ones(n, np.bool_), np.empty(n), np.zeros(n)
        parked, cheap, bought = np.zeros(n, np.bool_), np.ones(n, np.bool_), np.zeros(n, np.bool_)
        bill, origin = 0.0, price_starts[replay]
        place = max(0, np.searchsorted(price_at, origin, side="right") - 1)
        size = price_sizes[place]
        turn = price_at[place + 1] - origin if place + 1 < len(price_at) else np.inf
        for i in range(n):
            event[i], rate[i], cheap[i] = np.inf, full_rate[kind[i]], spot[i]
            if spot[i] and rank[i] >= size:
                running[i], parked[i] = False, True
            elif spot[i]:
                state, u = _random(state)
                k = kind[i]
                event[i] = _draw_time(life_s[k], life_cdf[k], age_cdf[k] + u * (1.0 - age_cdf[k]))
                rate[i] = spot_rate[k]
                event[i] = max(0.0, event[i] - age_s[k])
        present, speed, t, pause = 0, 0.0, 0.0, begin
        for i in range(n):
            if running[i]:
                present += 1
                speed += weight[i]
        saved, done, saving = 0.0, 0.0, 0.0
        lost_count, redone_s, on_demand_s = 0, 0.0, 0.0
        nearest = 0
        for i in range(n):
            if event[i] < event[nearest]:
                nearest = i
        while True:
            need = max(1, size + steady) if mode == 0 else least
            until = min(event[nearest], turn)
            if t > limit or (until == np.inf and present < need):
                t = np.inf
                break
            if deadline < np.inf:
                left = work - saved - done
                rest = left + np.ceil(left / interval) * save + save + restart
                slack = deadline - t - rest - margin
                if slack <= 1e-6:
                    on_demand_s = rest
                    break
                if present < need and t + slack < until:
                    t += slack
                    continue
            if present >= need:
                if pause > 0.0:
                    step = min(pause, until - t)
                    pause -= step
                    t += step
                    if t < until:
                        continue
                elif saving > 0.0:
                    step = min(saving, until - t)
                    saving -= step
                    t += step
                    if saving <= 0.0:
                        saved += done
                        done = 0.0
                        if saved >= work - 1e-9:
                            break
                    if t < until:
                        continue
                else:
                    to_mark = min(interval, work - saved) - done
                    step = to_mark / speed
                    if t + step <= until:
                        t += step
                        done += to_mark
                        saving = save
                        if save <= 0.0:
                            saved += done
                            done = 0.0
                            if saved >= work - 1e-9:
                                break
                        continue
                    done += (until - t) * speed
            t = until
            i = nearest
            if turn <= event[nearest]:
                place += 1
                turn = price_at[place + 1] - origin if place + 1 < len(price_at) else np.inf
                if price_sizes[place] == size:
                    continue
                size = price_sizes[place]
                let_go = 0
                for j in range(n):
                    if spot[j] and rank[j] >= size and not parked[j] and not bought[j]:
                        if running[j]:
                            let_go += 1
                            running[j] = False
                            present -= 1
                            # It is kept until the job has saved.
                            kept = save if done > 0.0 else 0.0
                            used = _paid(price_at, price, price_paid, origin + born[j], origin + t + kept)
                            bill += rate[j] * used
                        event[j], parked[j] = np.inf, True
                    elif spot[j] and rank[j] < size and parked[j]:
                        parked[j] = False
                        state, u = _random(state)
                        wait = _draw_time(wait_s[kind[j]], wait_cdf[kind[j]], u)
                        event[j] = t + provision + wait + (restart if mode == 2 else 0.0)
                if let_go > 0 and mode != 2:
                    pause = restart + (save if done > 0.0 else 0.0)
                    saved += done
                    done = 0.0
                    saving = 0.0
                    if saved >= work - 1e-9:
                        break
            elif running[i]:
                lost_count += 1
                running[i] = False
                present -= 1
                if cheap[i]:
                    bill += rate[i] * _paid(price_at, price, price_paid, origin + born[i], origin + t)
                else:
                    bill += rate[i] * (t - born[i])
                if redo:
                    redone_s += done
                    done = 0.0
                    saving = 0.0
                if mode != 2:
                    pause = restart
                event[i] = np.inf
                bought[i] = replace == 2
                if replace != 0:
                    k = kind[i]
                    wait = 0.0
                    if replace == 1:
                        state, u = _random(state)
                        wait = _draw_time(wait_s[k], wait_cdf[k], u)
                    event[i] = t + provision + wait + (restart if mode == 2 else 0.0)
            else:
                running[i] = True
                present += 1
                born[i] = t - (restart if mode == 2 else 0.0)
                k = kind[i]
                if bought[i]:
                    event[i], rate[i], cheap[i] = np.inf, full_rate[k], False
                else:
                    state, u = _random(state)
                    event[i], rate[i] = max(t, born[i] + _draw_time(life_s[k], life_cdf[k], u)), spot_rate[k]
                if mode == 0 and present == size + steady:
                    pause = restart
                if mode == 1:
                    # Taking a machine in is planned: what was done is saved first.
                    pause = restart + (save if done > 0.0 else 0.0)
                    saved += done
                    done = 0.0
                    saving = 0.0
            speed = 0.0
            for j in range(n):
                if running[j]:
                    speed += weight[j]
                if event[j] < event[nearest] or j == 0:
                    nearest = j
        for j in range(n):
            if running[j] and t < np.inf:
                if cheap[j]:
                    bill += rate[j] * _paid(price_at, price, price_paid, origin + born[j], origin + t)
                else:
                    bill += rate[j] * (t - born[j])
            if on_demand_s > 0.0 and j < on_demand_size:
                bill += full_rate[kind[j]] * on_demand_s
        finish[replay] = t + on_demand_s
        cost[replay] = bill + other_rate * (t + on_demand_s) if t < np.inf else np.inf
        losses[replay] = lost_count
        redone[replay] = redone_s
        switched[replay] = on_demand_s


def _replay(
    first, last, starts, at_s, counts, end_s, machines, spot_rate, full_rate, other_rate, price_at, price, price_sizes,
    price_starts, work, interval, save, provision, restart, mode, redo, least, policy, deadline,
    finish, cost, losses, redone, switched,
):  # fmt: skip
    """The job from each start through the trace; infinite where the trace ends first.

    Prices have a clock of their own. Machines that are let go because of them are not lost: the job saves first.

    `policy` 0: spot only. 1: greedy, on-demand from the last moment that still meets the deadline. 2: uniform progress.
    """
    for replay in range(first, last):
        start = starts[replay]
        place = np.searchsorted(at_s, start, side="right") - 1
        t, held = start, 0
        origin = price_starts[replay] - start
        tick = max(0, np.searchsorted(price_at, price_starts[replay], side="right") - 1)
        saved, done, saving, pause = 0.0, 0.0, 0.0, 0.0
        bill, lost_count, redone_s, on_demand_s = 0.0, 0, 0.0, 0.0
        on_demand = False
        finished = False
        while not finished:
            trace_until = at_s[place + 1] if place + 1 < len(at_s) else end_s
            price_until = price_at[tick + 1] - origin if tick + 1 < len(price_at) else np.inf
            until = min(trace_until, price_until)
            count = min(price_sizes[tick], counts[place])
            if count < held and counts[place] >= held:
                if done > 0.0 and not on_demand:
                    bill += (held - count) * spot_rate * price[tick] * save
                    saved += done
                    done, saving = 0.0, 0.0
                if not on_demand:
                    pause = restart + save if mode != 2 else 0.0
            elif count < held:
                lost_count += held - max(count, counts[place])
                if redo and not on_demand:
                    redone_s += done
                    done, saving = 0.0, 0.0
                if not on_demand:
                    pause = restart if mode != 2 else 0.0
            elif count > held and not on_demand:
                if mode == 0 and count == price_sizes[tick]:
                    pause = provision + restart
                elif mode == 1:
                    pause = provision + restart + (save if done > 0.0 else 0.0)
                    saved += done
                    done, saving = 0.0, 0.0
            held = count
            need = max(1, price_sizes[tick]) if mode == 0 else least
            while t < until:
                left = work - saved - done
                rest = left + np.ceil(left / interval) * save + save + restart
                now = t - start
                ready = held >= need
                if policy != 0:
                    # On spot one more loss has to be paid for; while nothing runs, none can happen.
                    once = interval + save + provision + restart
                    slack = deadline - now - rest
                    late = slack <= (once if ready and not on_demand else restart)
                    if on_demand:
                        # Going back costs a start, and from then on a loss can come again.
                        free = policy == 2 and slack > once + provision + restart
                        if free and (ready or saved + done >= now / deadline * work + 2 * restart):
                            on_demand = False
                            saved += done
                            done, saving = 0.0, 0.0
                            pause = provision + restart
                    elif late or (policy == 2 and not ready and saved + done < now / deadline * work):
                        on_demand = True
                        saved += done
                        done, saving = 0.0, 0.0
                        pause = restart + save
                going = on_demand or ready
                step = until - t
                if not going:
                    if policy == 1:
                        step = min(step, max(1.0, deadline - now - rest - restart))
                    elif policy == 2:
                        # Idle until the line of uniform progress is crossed, or the last moment comes.
                        cross = (saved + done) / work * deadline - now
                        step = min(step, max(1.0, min(cross, deadline - now - rest - restart)))
                speed = 1.0 if on_demand else held / machines
                if going:
                    if pause > 0.0:
                        step = min(step, pause)
                        pause -= step
                    elif saving > 0.0:
                        step = min(step, saving)
                        saving -= step
                        if saving <= 1e-9:
                            saving = 0.0
                            saved += done
                            done = 0.0
                    else:
                        to_mark = min(interval, work - saved) - done
                        step = min(step, to_mark / speed)
                        done += step * speed
                        if done >= min(interval, work - saved) - 1e-6:
                            if save > 0.0:
                                saving = save
                            else:
                                saved += done
                                done = 0.0
                t += step
                bill += (machines * full_rate if on_demand else held * spot_rate * price[tick]) * step
                on_demand_s += step if on_demand else 0.0
                if saved >= work - 1e-3:
                    finished = True
                    break
            if finished:
                break
            if price_until <= until:
                tick += 1
            if trace_until <= until:
                place += 1
            if place >= len(at_s):
                t = np.inf
                break
        finish[replay] = t - start
        cost[replay] = bill + other_rate * (t - start) if t < np.inf else np.inf
        losses[replay] = lost_count
        redone[replay] = redone_s
        switched[replay] = on_demand_s


simulate = njit(cache=_KEPT, nogil=True)(_simulate)
replay = njit(cache=_KEPT, nogil=True)(_replay)

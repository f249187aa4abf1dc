"""Who is signed in: by a token or by a link, for how long, and what is left of it afterwards."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgemerge.core.errors import DeniedError
from edgemerge.server import audit
from edgemerge.server.auth import (
    ATTEMPT_WINDOW_S,
    LINK_S,
    MAX_WRONG_ATTEMPTS,
    SESSION_S,
    Caller,
    SignInAttempts,
    TooManyAttemptsError,
    new_token,
)
from edgemerge.server.auth import MAX_SESSIONS as MOST_SESSIONS
from tests.server.world import FLEET, ROOT

HOSTILE = (
    *("", " ", "\x00", "' or 1=1 --", "emo_", "eml_", "ems_"),
    *(f"{start}{text}" for start in ("emo_", "eml_", "ems_") for text in ("\u20ac", "\ud800")),
    "emo_" + "x" * 2**20,
)


@pytest.fixture
def world(any_world):
    return any_world


@pytest.fixture
def sessions(world):
    return world.service.sessions


def rows(world, table):
    with world.service.database.reading() as tx:
        return tx.rows(f"select * from {table}")


def change(world, sql, *values):
    world.service.writer.write(lambda tx: tx.run(sql, *values))


def told(world):
    """The audit log, as words."""
    return [(e.actor, e.action, e.detail) for e in world.service.audit(None, 0, 1000)]


def test_an_operators_token_begins_a_session_of_twelve_hours(world, sessions):
    cookie, session = sessions.sign_in(world.operator_token)
    assert (session.name, session.caller) == ("root", Caller("root", role="admin"))
    assert session.expires == world.now + 12 * 3600
    assert sessions.session(cookie) == session


def test_a_session_ends_when_it_expires(world, sessions):
    cookie, _ = sessions.sign_in(world.operator_token)
    world.now += SESSION_S - 0.001
    assert sessions.session(cookie) is not None
    world.now += 0.001
    assert sessions.session(cookie) is None


def test_a_session_survives_a_restart_of_the_server(world, sessions):
    cookie, session = sessions.sign_in(world.operator_token)
    world.restart()
    assert world.service.sessions.session(cookie) == session


def test_signing_out_ends_this_session_and_no_other(world, sessions):
    one, two = (sessions.sign_in(world.operator_token)[0] for _ in range(2))
    sessions.sign_out(one)
    sessions.sign_out(one)
    assert sessions.session(one) is None
    assert sessions.session(two) is not None
    assert len(rows(world, "sessions")) == 1


def test_what_is_stored_opens_nothing(world, sessions):
    cookie, session = sessions.sign_in(world.operator_token)
    link = sessions.link(ROOT).token
    everything = repr([rows(world, "sessions"), rows(world, "links"), rows(world, "audit")])
    assert not [each for each in (cookie, session.csrf, link) if each[-20:] in everything]
    stored = rows(world, "sessions")[0][0]
    assert sessions.session(stored) is None
    assert sessions.session("ems_" + stored) is None


def test_all_tokens_that_do_not_sign_in_are_refused_with_the_same_words(world, sessions):
    world.caller("pump-1")
    world.caller("pump-2")
    world.service.revoke(FLEET, "pump-2", ROOT)
    tried = [new_token("operator"), world.tokens["pump-1"], world.tokens["pump-2"], "nonsense"]
    words = set()
    for token in tried:
        with pytest.raises(DeniedError, match="take that of your account") as refused:
            sessions.sign_in(token)
        words.add(str(refused.value))
    assert len(words) == 1
    assert rows(world, "sessions") == []


def test_hostile_texts_are_neither_tokens_nor_links_nor_cookies(sessions):
    for text in HOSTILE:
        for attempt in (sessions.sign_in, sessions.sign_in_by_link):
            with pytest.raises((DeniedError, TooManyAttemptsError)):
                attempt(text)
        assert sessions.session(text) is None
        sessions.sign_out(text)


def test_sessions_of_an_operator_who_is_gone_are_gone(world, sessions):
    cookie, _ = sessions.sign_in(world.operator_token)
    link = sessions.link(ROOT).token
    change(world, "delete from accounts")
    assert sessions.session(cookie) is None
    with pytest.raises(DeniedError, match="removed, revoked or has expired"):
        sessions.sign_in_by_link(link)
    with pytest.raises(DeniedError, match="root"):
        sessions.link(ROOT)


def test_a_new_token_of_the_same_name_does_not_bring_old_sessions_and_links_back(world, sessions):
    cookie, _ = sessions.sign_in(world.operator_token)
    link = sessions.link(ROOT).token
    world.service.accounts.accept_from_file(new_token("operator"), "root")
    assert sessions.session(cookie) is None
    with pytest.raises(DeniedError):
        sessions.sign_in_by_link(link)


def test_a_clock_that_was_set_back_keeps_nobody_out(world, sessions):
    world.now -= 500.0
    cookie, _ = sessions.sign_in(world.operator_token)
    assert sessions.session(cookie) is not None
    assert sessions.sign_in_by_link(sessions.link(ROOT).token)[1].name == "root"


def test_an_operator_has_at_most_a_hundred_sessions_and_the_oldest_go(world, sessions):
    world.service.accounts.add("other", "viewer", None, ROOT)
    other, _ = sessions.sign_in_by_link(sessions.link(Caller("other")).token)
    cookies = []
    for _ in range(MOST_SESSIONS + 2):
        world.now += 1.0
        cookies.append(sessions.sign_in(world.operator_token)[0])
    there = [sessions.session(cookie) is not None for cookie in cookies]
    assert there == [False] * 2 + [True] * MOST_SESSIONS
    assert sessions.session(other) is not None


def test_what_has_expired_is_removed_when_somebody_signs_in(world, sessions):
    sessions.sign_in(world.operator_token)
    sessions.link(ROOT)
    world.now += SESSION_S
    sessions.sign_in(world.operator_token)
    sessions.link(ROOT)
    assert (len(rows(world, "sessions")), len(rows(world, "links"))) == (1, 1)


def test_a_link_works_once(world, sessions):
    link = sessions.link(ROOT)
    cookie, session = sessions.sign_in_by_link(link.token)
    assert (link.expires, session.name) == (world.now + 600, "root")
    assert sessions.session(cookie) == session
    with pytest.raises(DeniedError, match="edgemerge dashboard makes another"):
        sessions.sign_in_by_link(link.token)


def test_a_link_works_once_however_many_try_at_the_same_moment(world, sessions):
    link = sessions.link(ROOT).token

    def attempt(_number):
        try:
            return sessions.sign_in_by_link(link)
        except DeniedError:
            return None

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(attempt, range(6)))
    assert sum(each is not None for each in found) == 1
    assert len(rows(world, "sessions")) == 1


def test_a_link_works_for_ten_minutes(world, sessions):
    early, late = (sessions.link(ROOT).token for _ in range(2))
    world.now += LINK_S - 0.001
    sessions.sign_in_by_link(early)
    world.now += 0.001
    with pytest.raises(DeniedError, match="expired"):
        sessions.sign_in_by_link(late)


def test_the_audit_log_says_who_signed_in_how_and_who_signed_out(world, sessions):
    before = len(told(world))
    cookie, _ = sessions.sign_in(world.operator_token)
    sessions.sign_out(cookie)
    sessions.sign_out(cookie)
    sessions.sign_in_by_link(sessions.link(ROOT).token)
    found = told(world)[before:]
    assert [(actor, action) for actor, action, _ in found] == [
        ("admin root", "sign in"),
        ("admin root", "sign out"),
        ("admin root", "make sign-in link"),
        ("admin root", "sign in"),
    ]
    assert [detail for *_, detail in found if "by" in detail] == ['{"by":"token"}', '{"by":"link"}']
    with world.service.database.reading() as tx:
        assert audit.verify(tx) == len(told(world))


def test_every_session_has_a_token_for_forms_that_tells_nothing_of_its_cookie(world, sessions):
    (one, first), (_, second) = (sessions.sign_in(world.operator_token) for _ in range(2))
    assert first.csrf != second.csrf
    assert first.csrf not in one
    assert sessions.session(one).csrf == first.csrf


def test_after_ten_wrong_attempts_within_a_minute_only_good_tokens_get_an_answer(world, sessions):
    link = sessions.link(ROOT).token
    for _ in range(MAX_WRONG_ATTEMPTS):
        with pytest.raises(DeniedError):
            sessions.sign_in("wrong")
    for wrong in (sessions.sign_in, sessions.sign_in_by_link):
        with pytest.raises(TooManyAttemptsError, match="try again in") as told:
            wrong("wrong")
        assert 0 < told.value.retry_s <= ATTEMPT_WINDOW_S
    assert sessions.sign_in(world.operator_token)[1].name == "root"
    assert sessions.sign_in_by_link(link)[1].name == "root"


def test_wrong_attempts_are_forgotten_after_a_minute():
    now = [0.0]
    attempts = SignInAttempts(lambda: now[0])
    for second in range(MAX_WRONG_ATTEMPTS):
        now[0] = float(second)
        attempts.record_failure()
    now[0] = ATTEMPT_WINDOW_S - 0.5
    with pytest.raises(TooManyAttemptsError) as told:
        attempts.record_failure()
    assert told.value.retry_s == 1.0
    now[0] = ATTEMPT_WINDOW_S
    attempts.record_failure()
    with pytest.raises(TooManyAttemptsError):
        attempts.record_failure()

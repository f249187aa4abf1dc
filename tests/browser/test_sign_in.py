"""Signing in and out in a real browser, and what happens when a session ends."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.workshop import FLEET

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


def test_the_token_opens_the_page_that_was_wanted_and_signing_out_closes_it(shop, visit):
    shop.add("pump-1", "idle")
    visitor = visit()
    visitor.go(f"/ui/fleets/{FLEET}/merge")
    expect(visitor.page).to_have_url(re.compile("/ui/sign-in"))
    visitor.page.get_by_label("token").fill(shop.here.token)
    visitor.page.get_by_role("button", name="Sign in").click()
    expect(visitor.page).to_have_url(re.compile(f"/ui/fleets/{FLEET}/merge$"))
    visitor.page.get_by_role("button", name="Sign out").click()
    expect(visitor.page).to_have_url(re.compile("/ui/sign-in"))
    visitor.go(f"/ui/fleets/{FLEET}")
    expect(visitor.page).to_have_url(re.compile("/ui/sign-in"))
    visitor.must_be_quiet()


def test_a_wrong_token_is_refused_in_words_and_shows_nothing(shop, visit):
    shop.add("pump-1", "idle")
    visitor = visit()
    visitor.go("/ui/sign-in")
    visitor.page.get_by_label("token").fill("emo_" + "x" * 43)
    visitor.page.get_by_role("button", name="Sign in").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("does not open the dashboard")
    assert FLEET not in visitor.page.content()
    assert visitor.context.cookies() == []
    visitor.must_be_quiet("the server responded with a status of 403")


def test_a_link_signs_in_once(shop, visit):
    shop.add("pump-1", "idle")
    link = shop.here.operator.sign_in_link()["path"]
    visitor = visit()
    visitor.go(link)
    expect(visitor.page).to_have_url(re.compile(f"/ui/fleets/{FLEET}/episodes$"))
    (cookie,) = visitor.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    other = visit()
    other.go(link)
    expect(other.page.get_by_role("alert")).to_contain_text("work once")
    visitor.must_be_quiet()


@pytest.mark.long
def test_an_expired_session_leads_to_sign_in_and_back(shop, visit):
    shop.add("pump-1", "idle")
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}")
    expect(visitor.page.locator("#live")).to_have_text("live")
    shop.here.service.writer.write(lambda tx: tx.run("update sessions set expires = 0"))
    expect(visitor.page).to_have_url(re.compile(r"/ui/sign-in\?next="))
    visitor.page.get_by_label("token").fill(shop.here.token)
    visitor.page.get_by_role("button", name="Sign in").click()
    expect(visitor.page).to_have_url(re.compile(f"/ui/fleets/{FLEET}$"))
    visitor.must_be_quiet("401")


def test_the_theme_is_that_of_the_system_until_another_is_chosen(shop, visit):
    shop.add("pump-1", "idle")
    visitor = visit(color_scheme="dark")
    visitor.sign_in(shop.here.token)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = visitor.page.evaluate(ground)
    visitor.page.get_by_role("button", name="Light", exact=True).click()
    assert visitor.page.evaluate(ground) != dark
    visitor.page.reload()
    assert visitor.page.evaluate(ground) != dark
    visitor.must_be_quiet()

from __future__ import annotations

from fedkin.data.plays import as_arrays, parse_complete, parse_leaf, parse_tiny

TINY = "First Citizen:\nBefore we proceed,\nhear me speak.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\nResolved?\n"

COMPLETE = """@@@ play hamlet
ACT I.

SCENE I. Elsinore.

[Enter Francisco
and Bernardo.]

Ber.
Who's there?

Fran.
Nay, answer me: stand, and unfold yourself.

Ber.
Long live the king!
Fran.
Bernardo?

Ber.
He. [Aside] 'Tis now
struck twelve.

Fran.
Amen.

@@@ poem sonnets
From fairest creatures we desire increase,
@@@ play midsummer_nights_dream

OBERON
Ill met by moonlight, proud Titania.

TITANIA
What, jealous Oberon!

OBERON
Tarry, rash wanton.

TITANIA
Then I must be thy lady.
"""

LEAF = """The contents


                     1601

THE TRAGEDY OF HAMLET, PRINCE OF DENMARK


by William Shakespeare


  Ber. Who's there?
  Fran. Nay, answer me. Stand and unfold yourself.
    Long live
                                          Exit BERNARDO.
  Ber. He.

THE END


1593

THE COMEDY OF ERRORS

by William Shakespeare


ACT I. SCENE 1

AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.
<<THIS ELECTRONIC VERSION>>
not spoken
DUKE. Merchant of Syracuse, plead no more;
"""


def test_tiny_blocks() -> None:
    assert parse_tiny(TINY) == {
        "First Citizen": ["Before we proceed,", "hear me speak.", "Resolved?"],
        "All": ["Speak, speak."],
    }


def test_complete_works_mark_speakers_in_several_ways() -> None:
    roles = parse_complete(COMPLETE)
    assert roles["hamlet: BER"] == ["Who's there?", "Long live the king!", "He.  'Tis now", "struck twelve."]
    assert roles["hamlet: FRAN"] == ["Nay, answer me: stand, and unfold yourself.", "Bernardo?", "Amen."]
    assert roles["midsummer_nights_dream: OBERON"] == ["Ill met by moonlight, proud Titania.", "Tarry, rash wanton."]
    assert len(roles) == 4


def test_leaf_s_file() -> None:
    roles = parse_leaf(LEAF)
    hamlet = "THE TRAGEDY OF HAMLET, PRINCE OF DENMARK"
    assert roles[f"{hamlet}: BER"] == ["Who's there?", "He."]
    assert roles[f"{hamlet}: FRAN"][:2] == ["Nay, answer me. Stand and unfold yourself.", "Long live"]
    assert roles["THE COMEDY OF ERRORS: AEGEON"] == [
        "Proceed, Solinus, to procure my fall,",
        "And by the doom of death end woes and all.",
    ]
    assert roles["THE COMEDY OF ERRORS: DUKE"] == ["Merchant of Syracuse, plead no more;"]
    assert not any("ACT" in name.split(":")[1] for name in roles)


def test_arrays_hold_ascii_only() -> None:
    arrays = as_arrays({"b": ["naïve", "café"], "a": ["—x"]})
    assert arrays["names"].tolist() == ["a", "b"]
    assert arrays["text"].tobytes() == b"xnaive\ncafe"
    assert arrays["offsets"].tolist() == [0, 1, 11]

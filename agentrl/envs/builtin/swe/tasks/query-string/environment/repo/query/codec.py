"""Percent-encoding."""

SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def decode(text):
    """Text out of its encoded form; what is no valid escape stays as it is."""
    data = bytearray()
    index = 0
    raw = text.replace("+", " ").encode()
    while index < len(raw):
        digits = raw[index + 1 : index + 3]
        if raw[index] == ord("%") and len(digits) == 2 and all(chr(d) in "0123456789abcdefABCDEF" for d in digits):
            data.append(int(digits, 16))
            index += 3
        else:
            data.append(raw[index])
            index += 1
    return data.decode(errors="replace")


def encode(text):
    """Text in its encoded form."""
    return "".join(chr(b) if chr(b) in SAFE else "+" if b == 32 else f"%{b:02X}" for b in text.encode())

"""Text for mails."""

from letter.mail import format_mail
from letter.wrap import wrap

__all__ = ["format_mail", "wrap"]

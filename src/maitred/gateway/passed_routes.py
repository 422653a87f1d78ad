"""`find_form_field`, which scripts outside the project import from here."""

from maitred.gateway.intake.passed_routes import find_form_field

__all__ = ["find_form_field"]

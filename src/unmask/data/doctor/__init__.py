"""A file of labelled texts is looked at before anything is learned from it: what is wrong, where, and what to do."""

from unmask.data.doctor.examine import DoctorSettings, Estimate, examine
from unmask.data.doctor.findings import Finding, Report, Severity
from unmask.data.doctor.fix import Fixed, fix

__all__ = ["DoctorSettings", "Estimate", "Finding", "Fixed", "Report", "Severity", "examine", "fix"]

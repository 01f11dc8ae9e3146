"""Did it forget? Everything for one's own model and rows.

run     audit(Audit) -> exit status: plans what fits into the minutes, does it, prints the verdict, writes the page
work    Audit, what is audited; AuditWork, its run directories step by step, and what need not be done again
"""

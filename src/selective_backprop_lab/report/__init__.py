"""The report: what selection did, as one HTML page made from the folders of runs."""

from selective_backprop_lab.report.images import data_of as data_of
from selective_backprop_lab.report.page import Report as Report
from selective_backprop_lab.report.page import build_report as build_report
from selective_backprop_lab.report.page import write_report as write_report
from selective_backprop_lab.report.runs import Run as Run
from selective_backprop_lab.report.runs import find_runs as find_runs

"""What a page says, read from its HTML: no test looks behind it."""

import csv
from html.parser import HTMLParser

from selective_backprop_lab.report import build_report


class Page(HTMLParser):
    """Rows of tables and of figures' data by id, and sentences of notes by id."""

    def __init__(self, html):
        super().__init__()
        self.html, self.tables, self.data, self.notes = html, {}, {}, {}
        self._rows, self._id, self._text = None, "", None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes and tag in ("table", "figure", "div"):
            self._id = attributes["id"]
        if tag == "tr":
            self._rows = self.tables.setdefault(self._id, [])
            self._rows.append([])
        if tag in ("th", "td", "li", "pre"):
            self._text = []
            self._class = attributes.get("class", "")
        if self._text and attributes.get("class") == "more":
            self._text.append(" | ")

    def handle_data(self, data):
        if self._text is not None:
            self._text.append(data)

    def handle_endtag(self, tag):
        if self._text is None or tag not in ("th", "td", "li", "pre"):
            return
        text, self._text = "".join(self._text).strip(), None
        if tag == "pre":
            self.data[self._id] = list(csv.DictReader(text.splitlines()))
        elif tag == "li":
            self.notes.setdefault(self._id, []).append(text)
        else:
            self._rows[-1].append(f"{text} [{self._class}]" if self._class else text)

    def row(self, table, name):
        """The cells after the heading of a row."""
        return next(cells[1:] for cells in self.tables[table] if cells[0].startswith(name))


def page_of(runs, **more):
    return Page(build_report(runs, **more).html())

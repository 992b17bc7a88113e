/* plot.c - the SVG: a panel for each workload, a bar for each implementation.
 *
 * Bars are on a logarithmic scale, whiskers go from the 10th to the 90th percentile.
 */
#include "suite.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
  COLUMNS = 3,
  PANEL_WIDTH = 430,
  LABEL_WIDTH = 92,
  VALUE_WIDTH = 68,
  BAR_WIDTH = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH - 30,
  ROW = 19,
  PANEL_HEAD = 40,
  PANEL_FOOT = 34,
  MARGIN = 24,
  HEAD = 104,
  FOOT_LINE = 16,
};

/* A panel's scale: decades first..last over BAR_WIDTH. */
typedef struct {
  double first, last;
} scale;

static double at(const scale *s, double value) {
  double position = (log10(fmax(value, 1e-6)) - s->first) / (s->last - s->first);
  return LABEL_WIDTH + BAR_WIDTH * fmin(fmax(position, 0), 1);
}

static void text(FILE *f, double x, double y, const char *class, const char *content) {
  fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
  for (const char *p = content; *p != '\0'; p++) {
    switch (*p) {
    case '<': fputs("&lt;", f); break;
    case '>': fputs("&gt;", f); break;
    case '&': fputs("&amp;", f); break;
    default: fputc(*p, f);
    }
  }
  fputs("</text>\n", f);
}

static scale find_scale(const results *r, int w) {
  double least = INFINITY, most = 0;
  for (int i = 0; i < impl_count; i++) {
    const cell *c = cell_at(r, w, i);
    if (c->outcome != MEASURED) continue;
    least = fmin(least, fmax(c->low, 1e-6));
    most = fmax(most, c->high);
  }
  if (most == 0) return (scale){0, 1};
  /* A little room below the shortest bar, so that it can be seen. */
  scale s = {floor(log10(least) - 0.15), ceil(log10(most))};
  if (s.last <= s.first) s.last = s.first + 1;
  return s;
}

static void draw_axis(FILE *f, const scale *s, double bottom) {
  int decades = (int)(s->last - s->first);
  int step = decades > 5 ? 2 : 1;
  for (int d = 0; d <= decades; d++) {
    double value = pow(10, s->first + d);
    double x = at(s, value);
    fprintf(f, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x,
            PANEL_HEAD - 4, x, bottom);
    if (d % step != 0) continue;
    char label[32];
    snprintf(label, sizeof label, "%.10g", value);
    text(f, x, bottom + 12, "tick", label);
  }
}

static void draw_bar(FILE *f, const scale *s, double y, const impl *i, const cell *c) {
  text(f, LABEL_WIDTH - 6, y + 13, "name", i->name);
  if (c->outcome != MEASURED) {
    text(f, LABEL_WIDTH + 4, y + 13, "none", c->outcome == MISSING ? "missing" : "failed");
    return;
  }
  double left = at(s, 0), end = at(s, c->median), low = at(s, c->low), high = at(s, c->high);
  double middle = y + ROW / 2.0;
  char value[32];
  fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left,
          y + 3, end - left, ROW - 6, i->colour);
  fprintf(f, "<path class=\"whisker\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6\"/>\n", low,
          middle, high, low, middle - 3, high, middle - 3);
  text(f, fmax(end, high) + 5, y + 13, "value", figure(value, c->median));
}

static void draw_panel(FILE *f, const results *r, int w, double x, double y) {
  int order[IMPLS_MOST];
  int n = shown_order(r, w, order);
  scale s = find_scale(r, w);
  double bottom = PANEL_HEAD + n * ROW + 2;
  fprintf(f, "<g transform=\"translate(%.0f %.0f)\">\n", x, y);
  char name[64];
  snprintf(name, sizeof name, "%s, %s", workloads[w].name, workloads[w].unit);
  text(f, 0, 12, "workload", name);
  text(f, 0, 27, "title", workloads[w].title);
  draw_axis(f, &s, bottom);
  for (int k = 0; k < n; k++) {
    draw_bar(f, &s, PANEL_HEAD + k * ROW, &impls[order[k]], cell_at(r, w, order[k]));
  }
  fputs("</g>\n", f);
}

static void draw_legend(FILE *f, const results *r, double y) {
  double x = MARGIN;
  for (int i = 0; i < impl_count; i++) {
    bool seen = false;
    for (int w = 0; w < workload_count; w++) seen |= cell_at(r, w, i)->outcome == MEASURED;
    if (!seen || (i > 0 && strcmp(impls[i].name, impls[i - 1].name) == 0)) continue;
    fprintf(f, "<rect x=\"%.0f\" y=\"%.0f\" width=\"11\" height=\"11\" fill=\"%s\"/>\n", x, y - 10,
            impls[i].colour);
    text(f, x + 16, y, "legend", impls[i].name);
    x += 38 + 7.2 * (double)strlen(impls[i].name);
  }
}

static const char STYLE[] =
    "<style>text{font-family:'DejaVu Sans',Verdana,Helvetica,Arial,sans-serif;fill:#1f2937}"
    ".head{font-size:20px;font-weight:bold}.sub,.foot{font-size:11px;fill:#4b5563}"
    ".legend{font-size:12px}.workload{font-size:13px;font-weight:bold}"
    ".title{font-size:11px;fill:#4b5563}.name{font-size:11px;text-anchor:end}"
    ".value{font-size:10.5px}.none{font-size:10.5px;font-style:italic;fill:#6b7280}"
    ".tick{font-size:9.5px;text-anchor:middle;fill:#6b7280}"
    ".grid{stroke:#e5e7eb}.whisker{stroke:#111827;fill:none}</style>\n";

bool write_svg(const results *r) {
  FILE *f = fopen(r->options->svg, "w");
  if (f == NULL) {
    fprintf(stderr, "bench: %s: %s\n", r->options->svg, strerror(errno));
    return false;
  }

  /* A row of panels is as high as its highest panel. */
  int chosen[WORKLOADS_MOST], panels = 0, order[IMPLS_MOST], missing = 0;
  for (int w = 0; w < workload_count; w++) {
    if (r->wanted[w]) chosen[panels++] = w;
  }
  for (int i = 0; i < impl_count; i++) missing += r->machine.missing[i];
  double tops[WORKLOADS_MOST], y = HEAD;
  for (int p = 0; p < panels; p += COLUMNS) {
    int rows = 0;
    for (int k = p; k < p + COLUMNS && k < panels; k++) {
      int n = shown_order(r, chosen[k], order);
      tops[k] = y;
      if (n > rows) rows = n;
    }
    y += PANEL_HEAD + rows * ROW + PANEL_FOOT;
  }
  int columns = panels < COLUMNS ? (panels < 2 ? 2 : panels) : COLUMNS;
  double width = 2 * MARGIN + columns * PANEL_WIDTH, height = y + missing * FOOT_LINE + 8;

  fprintf(
      f,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\">\n%s<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      width, height, width, height, STYLE);
  char line[512];
  text(f, MARGIN, 34, "head", "threadpool beside its peers");
  snprintf(line, sizeof line,
           "%d threads on %s, %d CPUs. Medians, logarithmic scale, shorter is better; whiskers: "
           "10th to 90th percentile.",
           r->options->threads, r->machine.cpu, r->machine.cpus);
  text(f, MARGIN, 54, "sub", line);
  draw_legend(f, r, 80);
  for (int p = 0; p < panels; p++) {
    draw_panel(f, r, chosen[p], MARGIN + (p % COLUMNS) * PANEL_WIDTH, tops[p]);
  }
  for (int i = 0; i < impl_count; i++) {
    if (!r->machine.missing[i]) continue;
    snprintf(line, sizeof line, "%s is missing: %s", impls[i].name, r->machine.versions[i]);
    text(f, MARGIN, y, "foot", line);
    y += FOOT_LINE;
  }
  fputs("</svg>\n", f);
  return fclose(f) == 0;
}

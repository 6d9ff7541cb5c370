/// What a training run has reached, epoch by epoch: as numbers, as a table in CSV, as learning curves in SVG.
#pragma once

#include <clocale>
#include <cstdarg>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <situ/core/list.hpp>
#include <situ/expr/math/basic.hpp>
#include <situ/io/detail/file.hpp>

namespace situ::inline SITU_ABI {
namespace learning {

/// One epoch. What was not measured is NaN; and so is what was, and came to nothing.
struct Epoch {
  int64_t number = 0;        ///< from 1 on
  double loss = 0;           ///< mean over the samples that were trained on
  double validation_loss = 0;
  double metric = 0;         ///< on the validation part
  double learning_rate = 0;
  double gradient_norm = 0;  ///< of the last step, before clipping; NaN where gradients are not clipped by norm
  double seconds = 0;        ///< of the training part
  int64_t samples = 0;
  bool validated = false;      ///< validation_loss was measured
  bool has_metric = false;     ///< metric was
  bool has_gradient_norm = false;

  double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  /// What an epoch is judged by: the validation loss, and the training loss where there is none.
  double judged() const { return !validated && math::isnan(validation_loss) ? loss : validation_loss; }
};

}  // namespace learning

namespace detail {

[[gnu::cold]] inline void write_text_file(char const* who, std::string const& path, std::string const& text) {
  OutputFile file({who, path.c_str()});
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

/// Appends what printf would print, up to 400 characters, with a point whatever the locale's is; the format has none of the locale's.
[[gnu::cold]] __attribute__((format(printf, 2, 3))) inline void put(MessageText& to, char const* format, ...) {
  char buffer[400];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(buffer, sizeof buffer, format, values);
  va_end(values);
  std::string_view const point = std::localeconv()->decimal_point;
  std::string_view text = buffer;
  if (point != ".") {
    for (std::size_t at; (at = text.find(point)) != text.npos; text.remove_prefix(at + point.size())) {
      to.add(text.data(), at);
      to.add(".");
    }
  }
  to.add(text.data(), text.size());
}

/// Appends a text as it stands inside of SVG.
[[gnu::cold]] inline void put_for_xml(MessageText& to, std::string const& text) {
  for (char const& c : text) {
    char const* const other = c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : nullptr;
    if (other) to.add(other);
    else to.add(&c, 1);
  }
}

/// A text as a field of a table: in quotes where it would end the field.
[[gnu::cold]] inline std::string csv_field(std::string const& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

/// A panel of curves over the epochs.
struct CurvePanel {
  struct Curve {
    char const* name;
    char const* color;
    List<double> values;  // NaN where there is none
  };
  std::string const& title;
  int count;
  Curve all[2];

  std::span<Curve const> curves() const { return {all, static_cast<std::size_t>(count)}; }

  [[gnu::cold]] bool empty() const {
    for (Curve const& curve : curves()) {
      for (double const y : curve.values) {
        if (has_place(y)) return false;
      }
    }
    return true;
  }
  /// Appends the panel as SVG, its left upper corner at x0.
  [[gnu::cold]] void draw(MessageText& out, double x0, double width, double height) const {
    double const left = x0 + 56, right = x0 + width - 16, top = 36, bottom = height - 40;
    double low = 0, high = 0;
    bool first = true;
    std::size_t epochs = 0;
    for (Curve const& curve : curves()) {
      if (curve.values.size() > epochs) epochs = curve.values.size();
      for (double const y : curve.values) {
        if (!has_place(y)) continue;
        if (first || y < low) low = y;
        if (first || y > high) high = y;
        first = false;
      }
    }
    // Where values differ by less than labels show, the axis is that of one value: ticks so close may not even differ as numbers.
    double const size = -low > high ? -low : high, span = high - low;
    bool const flat = !(span > 1e-5 * size && size > 1e-300);
    double const step = tick(!flat ? span / 5 : size > 1e-300 ? size / 5 : 1);
    low = step * floor_of(low / step);
    high = step * -floor_of(-high / step);
    if (!(high > low + step / 2)) high = low + step;
    auto const x_at = [&](double k) { return epochs > 1 ? left + (right - left) * k / static_cast<double>(epochs - 1) : (left + right) / 2; };
    auto const y_at = [&](double y) { return bottom - (bottom - top) * (y - low) / (high - low); };
    put(out, "<text x=\"%.9g\" y=\"20\" text-anchor=\"middle\" font-weight=\"bold\">", (left + right) / 2);
    put_for_xml(out, title);
    out.add("</text>\n");
    for (double y = low; y <= high + step / 2; y += step) {
      put(out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", left, y_at(y), right, left - 6, y_at(y) + 4,
          y < step / 1e6 && y > -step / 1e6 ? 0 : y);
    }
    double every = tick(static_cast<double>(epochs) / 6);
    if (every < 1) every = 1;
    for (double k = every; k <= static_cast<double>(epochs); k += every) {
      put(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", x_at(k - 1), bottom + 16, k);
    }
    put(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">epoch</text>\n", (left + right) / 2, bottom + 32);
    put(out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" stroke=\"#333\"/>\n", left, top, bottom, right);
    double label = top + 8;
    for (Curve const& curve : curves()) {
      MessageText points;
      int shown = 0;
      for (std::size_t k = 0; k < curve.values.size(); ++k) {
        double const y = curve.values[k];
        if (!has_place(y)) continue;  // the line goes on to the next epoch that was measured
        put(points, shown++ ? "L%.1f %.1f" : "M%.1f %.1f", x_at(static_cast<double>(k)), y_at(y));
        if (curve.values.size() == 1) put(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x_at(0), y_at(y), curve.color);
      }
      if (shown == 0) continue;
      add_to(out, "<path d=\"", points.c_str(), "\" fill=\"none\" stroke=\"", curve.color, "\" stroke-width=\"1.8\"/>\n");
      if (count > 1) put(out, "<path d=\"M%.1f %.1fh18\" stroke=\"%s\" stroke-width=\"1.8\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n", right - 110, label, curve.color, right - 88, label + 4,
          curve.name);
      label += 16;
    }
  }

 private:
  /// NaN, infinities and what is about as large have none.
  static bool has_place(double y) { return y > -1e300 && y < 1e300; }
  static double floor_of(double x) {
    auto const down = static_cast<double>(static_cast<int64_t>(x));
    return down > x ? down - 1 : down;
  }
  /// 1, 2 or 5 times a power of ten, at least about x.
  static double tick(double x) {
    double unit = 1;
    while (unit < x) unit *= 10;
    while (unit / 10 >= x) unit /= 10;
    if (unit / 5 >= x) return unit / 5;
    if (unit / 2 >= x) return unit / 2;
    return unit;
  }
};

}  // namespace detail

namespace learning {

/// The epochs of a run.
struct History {
  std::vector<Epoch> epochs;
  std::string metric_name = "metric";
  int64_t best_epoch = 0;      ///< the number of the one with the lowest validation loss (training loss where there is no validation); 0 before the first
  bool stopped_early = false;

  /// A table: epoch, loss, validation_loss, the metric, learning_rate, gradient_norm, seconds, samples_per_second; empty where nothing was measured, nan where
  /// a loss has become that.
  [[gnu::cold]] std::string csv() const {
    detail::MessageText out;
    detail::add_to(out, "epoch,loss,validation_loss,", detail::csv_field(metric_name), ",learning_rate,gradient_norm,seconds,samples_per_second\n");
    for (Epoch const& e : epochs) {
      detail::add_to(out, e.number);
      double const columns[] = {e.loss, e.validation_loss, e.metric, e.learning_rate, e.gradient_norm, e.seconds, e.samples_per_second()};
      bool const measured[] = {e.samples > 0, e.validated, e.has_metric, true, e.has_gradient_norm, true, true};
      for (int k = 0; k < 7; ++k) {
        out.add(",");
        if (!math::isnan(columns[k])) out.add_floating(columns[k], k < 5 ? 9 : k == 5 ? 3 : 0, k >= 5);
        else if (measured[k]) out.add("nan");
      }
      out.add("\n");
    }
    return out.whole();
  }
  /// The losses, and the metric beside them where there is one, as a picture.
  [[gnu::cold]] std::string svg() const {
    std::string const loss = "loss";
    detail::CurvePanel losses{loss, 2, {{"training", "#1f77b4", {}}, {"validation", "#d62728", {}}}}, metric{metric_name, 1, {{"validation", "#d62728", {}}, {}}};
    for (Epoch const& e : epochs) {
      losses.all[0].values.push_back(e.loss);
      losses.all[1].values.push_back(e.validation_loss);
      metric.all[0].values.push_back(e.metric);
    }
    int const height = 300, width = 420;
    bool const both = !metric.empty();
    int const all = both ? 2 * width : width;
    detail::MessageText out;
    detail::put(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d 300\" width=\"%d\" height=\"300\" font-family=\"sans-serif\" font-size=\"11\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                all, all);
    losses.draw(out, 0, width, height);
    if (both) metric.draw(out, width, width, height);
    out.add("</svg>\n");
    return out.whole();
  }
  /// Throws    IoError when the file cannot be written; an older one is then as it was.
  void save_csv(std::string const& path) const { detail::write_text_file("save_csv", path, csv()); }
  void save_svg(std::string const& path) const { detail::write_text_file("save_svg", path, svg()); }
};

}  // namespace learning
}  // namespace situ::inline SITU_ABI

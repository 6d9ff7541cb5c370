/// What a training run has reached, epoch by epoch: as numbers, as a table in CSV, as learning curves in SVG.
#pragma once

#include <cstdarg>
#include <span>
#include <string>
#include <vector>

#include <situ/core/list.hpp>
#include <situ/expr/math/basic.hpp>
#include <situ/io/detail/file.hpp>

namespace situ::inline SITU_ABI {
namespace train {

/// One epoch. What was not measured is NaN.
struct Epoch {
  int64_t number = 0;        ///< from 1 on
  double loss = 0;           ///< mean over the samples that were trained on
  double validation_loss = 0;
  double metric = 0;         ///< on the validation part
  double learning_rate = 0;
  double gradient_norm = 0;  ///< of the last step, before clipping; NaN where gradients are not clipped by norm
  double seconds = 0;        ///< of the training part
  int64_t samples = 0;

  double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  /// What an epoch is judged by: the validation loss, and the training loss where there is none.
  double judged() const { return math::isnan(validation_loss) ? loss : validation_loss; }
};

}  // namespace train

namespace detail {

[[gnu::cold]] inline void write_text_file(char const* who, std::string const& path, std::string const& text) {
  OutputFile file({who, path.c_str()});
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

/// Appends what printf would print, up to 400 characters.
[[gnu::cold]] __attribute__((format(printf, 2, 3))) inline void put(MessageText& to, char const* format, ...) {
  char buffer[400];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(buffer, sizeof buffer, format, values);
  va_end(values);
  to.add(buffer);
}

/// Appends a text as it stands inside of SVG.
[[gnu::cold]] inline void put_for_xml(MessageText& to, std::string const& text) {
  for (char const& c : text) {
    char const* const other = c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : nullptr;
    if (other) to.add(other);
    else to.add(&c, 1);
  }
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
        if (math::isfinite(y)) return false;
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
        if (!math::isfinite(y)) continue;  // NaN and infinities have no place
        if (first || y < low) low = y;
        if (first || y > high) high = y;
        first = false;
      }
    }
    double const step = tick(high > low ? (high - low) / 5 : (high != 0 ? (high < 0 ? -high : high) / 5 : 1));
    low = step * floor_of(low / step);
    high = step * -floor_of(-(high > low ? high : low + step) / step);
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
        if (!math::isfinite(y)) continue;  // the line goes on to the next epoch that was measured
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

namespace train {

/// The epochs of a run.
struct History {
  std::vector<Epoch> epochs;
  std::string metric_name = "metric";
  int64_t best_epoch = 0;      ///< the number of the one with the lowest validation loss (training loss where there is no validation); 0 before the first
  bool stopped_early = false;

  /// A table: epoch, loss, validation_loss, the metric, learning_rate, gradient_norm, seconds, samples_per_second; empty where nothing was measured.
  [[gnu::cold]] std::string csv() const {
    detail::MessageText out;
    detail::add_to(out, "epoch,loss,validation_loss,", metric_name, ",learning_rate,gradient_norm,seconds,samples_per_second\n");
    for (Epoch const& e : epochs) {
      detail::add_to(out, e.number);
      double const columns[] = {e.loss, e.validation_loss, e.metric, e.learning_rate, e.gradient_norm, e.seconds, e.samples_per_second()};
      for (int k = 0; k < 7; ++k) {
        out.add(",");
        if (!math::isnan(columns[k])) out.add_floating(k < 5 ? "%.9g" : k == 5 ? "%.3f" : "%.0f", columns[k]);  // what is not measured is empty
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

}  // namespace train
}  // namespace situ::inline SITU_ABI

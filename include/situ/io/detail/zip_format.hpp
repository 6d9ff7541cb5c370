/// Zip archives as they are read here: the list of members, checked, and one member's bytes from front to back.
///
/// Members are stored, or deflated where a file of the program is compiled with SITU_WITH_ZLIB. Archives of several disks, encryption and other methods are refused.
///
/// Source    PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3; CRC-32 by tables of eight bytes after M. E. Kounavis and F. L. Berry,
///           Novel Table Lookup-Based Algorithms for High-Performance CRC Generation, 2008, doi:10.1109/TC.2008.85.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <situ/core/list.hpp>
#include <situ/device/cpu/system.hpp>
#include <situ/io/detail/file.hpp>
#include <situ/io/detail/safetensors_format.hpp>

#if defined(SITU_WITH_ZLIB)
#include <zlib.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

// ---- CRC-32 ------------------------------------------------------------------------------------------------------------------

struct Crc32Tables {
  uint32_t at[8][256];
  constexpr Crc32Tables() : at{} {
    for (uint32_t k = 0; k < 256; ++k) {
      uint32_t x = k;
      for (int bit = 0; bit < 8; ++bit) x = x >> 1 ^ (x & 1 ? 0xedb88320u : 0);
      at[0][k] = x;
    }
    for (int row = 1; row < 8; ++row) {
      for (int k = 0; k < 256; ++k) at[row][k] = at[row - 1][k] >> 8 ^ at[0][at[row - 1][k] & 255];
    }
  }
};
inline constexpr Crc32Tables crc32_tables;

/// The CRC-32 of what `crc` was computed for, followed by these bytes; 0 to begin with.
inline uint32_t crc32_of(uint32_t crc, unsigned char const* bytes, size_t size) {
  auto const& at = crc32_tables.at;
  crc = ~crc;
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    word ^= crc;
    crc = at[7][word & 255] ^ at[6][word >> 8 & 255] ^ at[5][word >> 16 & 255] ^ at[4][word >> 24 & 255] ^ at[3][word >> 32 & 255] ^ at[2][word >> 40 & 255] ^ at[1][word >> 48 & 255] ^
          at[0][word >> 56];
  }
  for (; size > 0; ++bytes, --size) crc = crc >> 8 ^ at[0][(crc ^ *bytes) & 255];
  return ~crc;
}

// ---- inflating -----------------------------------------------------------------------------------------------------------------

/// How deflated bytes are read: set by files that are compiled with SITU_WITH_ZLIB, so that all others share it. One per process.
struct InflateHooks {
  void* (*begin)();  ///< null if there is no memory
  /// Reads from `in` and writes to `out`, and advances both. 1 at the end, 0 before it, -1 for what is no deflated data.
  int (*step)(void* state, unsigned char const*& in, size_t& in_size, unsigned char*& out, size_t& out_size);
  void (*end)(void* state) noexcept;
};
SITU_PROCESS_STATE InflateHooks& inflate_hooks() {
  static constinit InflateHooks hooks{};
  return hooks;
}

#if defined(SITU_WITH_ZLIB)
inline namespace with_zlib {
inline void* zlib_begin() {
  auto* const stream = new z_stream{};
  if (::inflateInit2(stream, -15) == Z_OK) return stream;
  delete stream;
  return nullptr;
}
inline int zlib_step(void* state, unsigned char const*& in, size_t& in_size, unsigned char*& out, size_t& out_size) {
  auto& stream = *static_cast<z_stream*>(state);
  constexpr size_t most = size_t{1} << 30;
  auto const given = static_cast<uInt>(in_size < most ? in_size : most), room = static_cast<uInt>(out_size < most ? out_size : most);
  stream.next_in = const_cast<unsigned char*>(in);
  stream.avail_in = given;
  stream.next_out = out;
  stream.avail_out = room;
  int const code = ::inflate(&stream, Z_NO_FLUSH);
  in += given - stream.avail_in, in_size -= given - stream.avail_in;
  out += room - stream.avail_out, out_size -= room - stream.avail_out;
  return code == Z_STREAM_END ? 1 : code == Z_OK || code == Z_BUF_ERROR ? 0 : -1;
}
inline void zlib_end(void* state) noexcept {
  auto* const stream = static_cast<z_stream*>(state);
  ::inflateEnd(stream);
  delete stream;
}
inline bool const inflate_hooks_are_set = [] {
  if (inflate_hooks().begin) return true;
  cpu::stay_loaded(reinterpret_cast<void const*>(&zlib_begin));
  inflate_hooks() = {&zlib_begin, &zlib_step, &zlib_end};
  return true;
}();
}  // namespace with_zlib
#endif

// ---- the list of members --------------------------------------------------------------------------------------------------------

struct ZipMember {
  std::string name;
  unsigned flags = 0, method = 0;
  uint32_t crc = 0;
  int64_t stored_size = 0, size = 0;  ///< in the file, and of what it holds
  int64_t header = 0;                 ///< where its local header is
};

/// Little-endian numbers at a place of a piece of the file. The caller has checked that they are there.
struct ZipBytes {
  unsigned char const* at;
  unsigned u16(int offset) const { return at[offset] | static_cast<unsigned>(at[offset + 1]) << 8; }
  uint32_t u32(int offset) const { return u16(offset) | static_cast<uint32_t>(u16(offset + 2)) << 16; }
  uint64_t u64(int offset) const { return u32(offset) | static_cast<uint64_t>(u32(offset + 4)) << 32; }
};

inline constexpr uint32_t zip_end_mark = 0x06054b50, zip64_end_mark = 0x06064b50, zip64_locator_mark = 0x07064b50, zip_central_mark = 0x02014b50, zip_local_mark = 0x04034b50;

/// Numbers that are written, little-endian.
struct ZipText {
  std::string bytes;
  [[gnu::cold]] ZipText& put(uint64_t value, int size) {
    for (; size > 0; --size, value >>= 8) bytes.push_back(static_cast<char>(value & 255));
    return *this;
  }
};

/// Writes an archive of members that are stored as they are. What is above `most` of its 32-bit numbers, or its count of 16 bits, is written in the fields of zip64.
class ZipWriter {
 public:
  explicit ZipWriter(OutputFile& file, uint64_t most = 0xfffffffe) : file_(file), most_(most) {}

  /// Begins a member of so many bytes, which write() gets next. `name` is UTF-8 of less than 2^16 bytes.
  [[gnu::cold]] void begin(std::string_view name, int64_t size) {
    ZipMember member;
    member.name = name;
    member.size = member.stored_size = size;
    member.header = at_;
    for (char const c : name) {
      if (static_cast<unsigned char>(c) >= 128) member.flags = 1u << 11;  // UTF-8
    }
    bool const large = is_large(size);
    ZipText head;
    head.put(zip_local_mark, 4);
    put_head(head, member, large);
    head.put(large ? 20 : 0, 2).bytes += name;
    if (large) head.put(1, 2).put(16, 2).put(static_cast<uint64_t>(size), 8).put(static_cast<uint64_t>(size), 8);
    append(head);
    members_.push_back(std::move(member));
  }
  void write(void const* from, int64_t bytes) {
    members_.back().crc = crc32_of(members_.back().crc, static_cast<unsigned char const*>(from), static_cast<size_t>(bytes));
    file_.write(from, bytes);
    at_ += bytes;
  }
  /// Ends the member: its CRC-32 is known.
  [[gnu::cold]] void end() {
    ZipText crc;
    crc.put(members_.back().crc, 4);
    file_.write_at(members_.back().header + 14, crc.bytes.data(), 4);
  }
  /// Writes the list of members.
  [[gnu::cold]] void finish() {
    int64_t const list_at = at_;
    for (ZipMember const& member : members_) {
      bool const large = is_large(member.size), far = is_large(member.header);
      ZipText entry;
      entry.put(zip_central_mark, 4).put(large || far ? 45 : 20, 2);
      put_head(entry, member, large, far);
      int const extra = (large ? 16 : 0) + (far ? 8 : 0);
      entry.put(extra > 0 ? static_cast<uint64_t>(extra + 4) : 0, 2).put(0, 10).put(far ? 0xffffffff : static_cast<uint64_t>(member.header), 4).bytes += member.name;
      if (extra > 0) entry.put(1, 2).put(static_cast<uint64_t>(extra), 2);
      if (large) entry.put(static_cast<uint64_t>(member.size), 8).put(static_cast<uint64_t>(member.size), 8);
      if (far) entry.put(static_cast<uint64_t>(member.header), 8);
      append(entry);
    }
    uint64_t const count = members_.size(), size = static_cast<uint64_t>(at_ - list_at), end_at = static_cast<uint64_t>(at_);
    ZipText end;
    bool const large = count >= 0xffff || is_large(list_at) || is_large(at_ - list_at);
    if (large) {
      end.put(zip64_end_mark, 4).put(44, 8).put(45, 2).put(45, 2).put(0, 8).put(count, 8).put(count, 8).put(size, 8).put(static_cast<uint64_t>(list_at), 8);
      end.put(zip64_locator_mark, 4).put(0, 4).put(end_at, 8).put(1, 4);
    }
    end.put(zip_end_mark, 4).put(0, 4).put(large ? 0xffff : count, 2).put(large ? 0xffff : count, 2).put(large ? 0xffffffff : size, 4);
    append(end.put(large ? 0xffffffff : static_cast<uint64_t>(list_at), 4).put(0, 2));
  }

 private:
  bool is_large(int64_t number) const { return static_cast<uint64_t>(number) > most_; }
  /// What the local header and the entry in the list have in common: version to the size of the name. Of January 1, 1980, as NumPy's.
  [[gnu::cold]] static void put_head(ZipText& to, ZipMember const& member, bool large, bool far = false) {
    uint64_t const size = large ? 0xffffffff : static_cast<uint64_t>(member.size);
    to.put(large || far ? 45 : 20, 2).put(member.flags, 2).put(0, 2).put(0, 2).put(33, 2).put(member.crc, 4).put(size, 4).put(size, 4).put(member.name.size(), 2);
  }
  [[gnu::cold]] void append(ZipText const& text) {
    file_.write(text.bytes.data(), static_cast<int64_t>(text.bytes.size()));
    at_ += static_cast<int64_t>(text.bytes.size());
  }

  OutputFile& file_;
  uint64_t most_;
  int64_t at_ = 0;
  List<ZipMember> members_;
};

class ZipReader {
 public:
  /// `Source` has size() and read(to, offset, bytes), as InputFile.
  template <class Source>
  static List<ZipMember> members(Source const& file, FileContext const& context) {
    return ZipReader(context).list(file);
  }
  /// Where the bytes of a member begin.
  template <class Source>
  static int64_t data_begin(Source const& file, ZipMember const& member, FileContext const& context) {
    unsigned char fixed[30];
    file.read(fixed, member.header, 30);
    ZipBytes const local{fixed};
    if (local.u32(0) != zip_local_mark) context.fail("the archive is damaged: no member begins at byte ", member.header);
    int64_t const name_size = local.u16(26), begin = member.header + 30 + name_size + local.u16(28);
    std::string name(static_cast<size_t>(name_size), '\0');
    if (name_size > file.size() - member.header - 30) context.fail("the archive is damaged: a member reaches beyond the end of the file");
    file.read(name.data(), member.header + 30, name_size);
    if (name != member.name) context.fail("the archive is damaged: a member is called ", quoted(member.name), " in the list and ", quoted(name), " where it lies");
    if (begin > file.size() || member.stored_size > file.size() - begin) {
      context.fail("the archive is damaged: a member of ", member.stored_size, " bytes begins at byte ", begin, " of a file of ", file.size());
    }
    return begin;
  }

 private:
  explicit ZipReader(FileContext const& context) : context_(context) {}
  static QuotedBytes quoted(std::string_view name) { return quote_bytes(name); }

  template <class Source>
  List<ZipMember> list(Source const& file) {
    // The end mark is in the last 22 bytes, but for a comment behind it.
    int64_t const size = file.size(), tail_size = size < 22 + 65535 ? size : 22 + 65535;
    std::string tail(static_cast<size_t>(tail_size), '\0');
    file.read(tail.data(), size - tail_size, tail_size);
    auto const* const bytes = reinterpret_cast<unsigned char const*>(tail.data());
    int64_t at = tail_size - 22;
    for (; at >= 0; --at) {
      ZipBytes const end{bytes + at};
      if (end.u32(0) == zip_end_mark && end.u16(20) == tail_size - at - 22) break;
    }
    if (at < 0) {
      if (size == 0) context_.fail("the file is empty: 0 bytes found; a zip archive is needed");
      context_.fail("is no zip archive: no end of a list of members found in its last ", tail_size, " bytes");
    }
    ZipBytes const end{bytes + at};
    int64_t const end_at = size - tail_size + at;
    uint64_t count = end.u16(10), list_size = end.u32(12), list_at = end.u32(16);
    uint64_t disk = end.u16(4) | end.u16(6), here = end.u16(8);
    int64_t list_end = end_at;
    if ((count == 0xffff || here == 0xffff || list_size == 0xffffffff || list_at == 0xffffffff) && end_at >= 20) {
      unsigned char locator_bytes[20], record_bytes[56];
      file.read(locator_bytes, end_at - 20, 20);
      ZipBytes const locator{locator_bytes};
      if (locator.u32(0) == zip64_locator_mark) {
        uint64_t const record_at = locator.u64(8);
        if (end_at < 76 || record_at > static_cast<uint64_t>(end_at) - 76) damaged("the zip64 record is not in the file");
        file.read(record_bytes, static_cast<int64_t>(record_at), 56);
        ZipBytes const record{record_bytes};
        if (record.u32(0) != zip64_end_mark) damaged("there is no zip64 record where it should be");
        disk = locator.u32(4) | record.u32(16) | record.u32(20);
        here = record.u64(24), count = record.u64(32), list_size = record.u64(40), list_at = record.u64(48);
        list_end = static_cast<int64_t>(record_at);
      }
    }
    if (disk != 0 || here != count) context_.fail("the archive is in several parts; one file is needed");
    if (list_size > static_cast<uint64_t>(list_end) || list_at != static_cast<uint64_t>(list_end) - list_size) damaged("its list of members does not end where the archive ends");
    if (count > list_size / 46) damaged("its list of members is too short");

    std::string list(static_cast<size_t>(list_size), '\0');
    file.read(list.data(), static_cast<int64_t>(list_at), static_cast<int64_t>(list_size));
    List<ZipMember> result;
    result.reserve(static_cast<size_t>(count));
    auto const* place = reinterpret_cast<unsigned char const*>(list.data());
    int64_t left = static_cast<int64_t>(list_size);
    for (uint64_t k = 0; k < count; ++k) result.push_back(read_member(place, left, static_cast<int64_t>(list_at)));
    if (left != 0) damaged("its list of members is longer than it says");
    check(result);
    return result;
  }

  ZipMember read_member(unsigned char const*& place, int64_t& left, int64_t list_at) const {
    if (left < 46 || ZipBytes{place}.u32(0) != zip_central_mark) damaged("its list of members is cut");
    ZipBytes const fixed{place};
    int64_t const name_size = fixed.u16(28), extra_size = fixed.u16(30), all = 46 + name_size + extra_size + fixed.u16(32);
    if (left < all) damaged("its list of members is cut");
    ZipMember member;
    member.name.assign(reinterpret_cast<char const*>(place + 46), static_cast<size_t>(name_size));
    member.flags = fixed.u16(8);
    member.method = fixed.u16(10);
    member.crc = fixed.u32(16);
    uint64_t stored = fixed.u32(20), size = fixed.u32(24), header = fixed.u32(42), disk = fixed.u16(34);
    // What did not fit 32 bits is in an extra field, in this order.
    unsigned char const* extra = place + 46 + name_size;
    for (int64_t rest = extra_size; rest >= 4;) {
      unsigned const id = ZipBytes{extra}.u16(0);
      int64_t const field = ZipBytes{extra}.u16(2);
      if (field > rest - 4) damaged("an extra field is cut");
      if (id == 1) {
        unsigned char const* at = extra + 4;
        int64_t room = field;
        for (uint64_t* const number : {&size, &stored, &header}) {
          if (*number != 0xffffffff) continue;
          if (room < 8) damaged("a zip64 field is cut");
          *number = ZipBytes{at}.u64(0);
          at += 8, room -= 8;
        }
        if (disk == 0xffff) disk = room >= 4 ? ZipBytes{at}.u32(0) : disk;
      }
      extra += 4 + field;
      rest -= 4 + field;
    }
    if (disk != 0) context_.fail("the archive is in several parts; one file is needed");
    // A member lies in front of the list; what is deflated is at most 1032 times smaller.
    auto const space = static_cast<uint64_t>(list_at);
    if (header > space || space - header < 30 || stored > space - header - 30) damaged("a member does not lie in the file");
    if (size > (uint64_t{1} << 62) || (member.method == 0 && size != stored) || (member.method == 8 && size / 1032 > stored + 1)) damaged("a member's sizes cannot be right");
    member.stored_size = static_cast<int64_t>(stored);
    member.size = static_cast<int64_t>(size);
    member.header = static_cast<int64_t>(header);
    place += all;
    left -= all;
    return member;
  }

  /// Names are unique, and members do not overlap.
  void check(List<ZipMember> const& members) const {
    List<ZipMember const*> order;
    for (ZipMember const& member : members) order.push_back(&member);
    sort_pointers<ZipMember>(order, [](ZipMember const& a, ZipMember const& b) { return a.name.compare(b.name); });
    for (size_t k = 1; k < order.size(); ++k) {
      if (order[k]->name == order[k - 1]->name) context_.fail("two members of the archive are called ", quoted(order[k]->name), "; names are unique");
    }
    sort_pointers<ZipMember>(order, [](ZipMember const& a, ZipMember const& b) { return a.header < b.header ? -1 : a.header > b.header; });
    for (size_t k = 1; k < order.size(); ++k) {
      ZipMember const& before = *order[k - 1];
      if (order[k]->header - before.header < 30 + before.stored_size + static_cast<int64_t>(before.name.size())) damaged("two members overlap");
    }
  }

  [[noreturn]] SITU_NOINLINE void damaged(char const* what) const { context_.fail("the archive is damaged: ", what); }

  FileContext context_;
};

/// The bytes of one member, from front to back; their CRC-32 is compared at the end.
template <class Source>
class ZipStream {
 public:
  ZipStream(Source const& file, ZipMember const& member, FileContext const& context)
      : file_(file), member_(member), context_(context), left_(member.stored_size) {
    if (member.flags & 1) context.fail("the member is encrypted; save it without a password");
    if (member.method != 0 && member.method != 8) context.fail("the member is compressed by method ", member.method, "; 0 (stored) or 8 (deflated) is needed");
    at_ = ZipReader::data_begin(file, member, context);
    if (member.method == 0) return;
    hooks_ = inflate_hooks();
    if (!hooks_.begin) context.fail("the member is deflated, which this program cannot read: compile it with SITU_WITH_ZLIB (and link zlib), or save without compression, as numpy.savez does");
    state_ = hooks_.begin();
    if (!state_) context.fail("there is no memory to inflate the member");
  }
  ZipStream(ZipStream const&) = delete;
  ZipStream& operator=(ZipStream const&) = delete;
  ~ZipStream() {
    if (state_) hooks_.end(state_);
  }

  /// The next `bytes` bytes, which must not be more than are left.
  void read(void* to, int64_t bytes) {
    auto* out = static_cast<unsigned char*>(to);
    done_ += bytes;
    while (bytes > 0) {
      int64_t const n = bytes < piece ? bytes : piece;  // small enough to be in the cache for the CRC
      if (state_) inflate(out, static_cast<size_t>(n));
      else {
        file_.read(out, at_, n);
        at_ += n;
      }
      crc_ = crc32_of(crc_, out, static_cast<size_t>(n));
      out += n, bytes -= n;
    }
    if (done_ == member_.size) finish();
  }

 private:
  static constexpr int64_t piece = 1 << 18;

  void inflate(unsigned char* out, size_t size) {
    while (size > 0) {
      refill();
      size_t const before = size;
      bool const at_end = in_size_ == 0;
      if (!ended_) step(out, size);
      if (size == before && (at_end || ended_)) context_.fail("the member is damaged: its deflated data end too early");
    }
  }
  void refill() {
    if (in_size_ > 0 || left_ == 0) return;
    if (buffer_.empty()) buffer_.resize(static_cast<size_t>(left_ < 65536 ? left_ : 65536));
    in_size_ = static_cast<size_t>(left_) < buffer_.size() ? static_cast<size_t>(left_) : buffer_.size();
    file_.read(buffer_.data(), at_, static_cast<int64_t>(in_size_));
    in_ = reinterpret_cast<unsigned char const*>(buffer_.data());
    at_ += static_cast<int64_t>(in_size_), left_ -= static_cast<int64_t>(in_size_);
  }
  void step(unsigned char*& out, size_t& size) {
    int const code = hooks_.step(state_, in_, in_size_, out, size);
    if (code < 0) context_.fail("the member is damaged: its data are not what deflating makes");
    ended_ = code == 1;
  }
  void finish() {
    while (state_ && !ended_) {  // the mark of the end, and nothing more
      refill();
      unsigned char more;
      unsigned char* out = &more;
      size_t room = 1;
      bool const no_input = in_size_ == 0;
      step(out, room);
      if (room == 0 || (no_input && !ended_)) context_.fail("the member is damaged: its deflated data do not end where they should");
    }
    if (crc_ != member_.crc) context_.fail("the member is damaged: its CRC-32 is not what the archive says");
  }

  Source const& file_;
  ZipMember const& member_;
  FileContext context_;
  int64_t left_, at_ = 0, done_ = 0;
  uint32_t crc_ = 0;
  InflateHooks hooks_{};
  void* state_ = nullptr;
  bool ended_ = false;
  std::string buffer_;
  unsigned char const* in_ = nullptr;
  size_t in_size_ = 0;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

/// Files as bytes: an input whose size is known before anything is allocated, an output that appears whole or not at
/// all.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <concepts>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <situ/config.hpp>
#include <situ/core/error.hpp>
#include <situ/core/list.hpp>
#include <situ/core/shape.hpp>
#include <situ/core/storage.hpp>
#include <situ/device/cpu/launch.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What an error message begins with: the function that was called and the file it was given.
struct FileContext {
  char const* who;
  char const* path;

  /// Throws IoError with the parts as its message.
  template <class... Parts>
  [[noreturn]] SITU_INLINE void fail(Parts const&... parts) const;
  /// The same for what the system refused.
  [[noreturn, gnu::cold]] SITU_NOINLINE void fail_by_system(char const* what, int error, char const* needed) const { fail(what, ": ", std::strerror(error), "; ", needed); }
};
[[noreturn]] SITU_REPORTS void fail_with_file(FileContext const& context, WriteWord const* writers, int count, ...) {
  MessageText text;
  add_to(text, context.who, ": ", context.path, ": ");
  __builtin_va_list words;
  __builtin_va_start(words, count);
  write_words(text, writers, count, words);
  __builtin_va_end(words);
  throw_message<IoError>(text);
}
template <class... Parts>
void FileContext::fail(Parts const&... parts) const {
  fail_with_file(*this, word_writers<std::decay_t<Parts const>...>, static_cast<int>(sizeof...(Parts)), message_word(parts)...);
}

/// Bytes from a file as they may stand in a message: quoted, printable, short.
struct QuotedBytes {
  unsigned char const* bytes;
  size_t size;
};
SITU_REPORTS void append_to(MessageText& to, QuotedBytes const& quoted) {
  constexpr size_t longest = 40;
  constexpr char const* digits = "0123456789abcdef";
  to.add("'", 1);
  for (size_t i = 0; i < quoted.size && i < longest; ++i) {
    unsigned char const byte = quoted.bytes[i];
    char const escape[] = {'\\', 'x', digits[byte >> 4], digits[byte & 15]}, plain = static_cast<char>(byte);
    if (byte >= 0x20 && byte < 0x7f) to.add(&plain, 1);
    else to.add(escape, 4);
  }
  to.add(quoted.size > longest ? "…'" : "'");
}
inline QuotedBytes quote_bytes(unsigned char const* bytes, size_t size) { return {bytes, size}; }
inline QuotedBytes quote_bytes(std::string_view bytes) { return {reinterpret_cast<unsigned char const*>(bytes.data()), bytes.size()}; }

/// Compares two names that std::qsort sorts.
inline int compare_names(void const* a, void const* b) { return static_cast<std::string_view const*>(a)->compare(*static_cast<std::string_view const*>(b)); }
/// Sorts names. One that stands twice, or null.
[[gnu::cold]] inline std::string_view const* sort_names(List<std::string_view>& names) {
  if (!names.empty()) std::qsort(names.data(), names.size(), sizeof(std::string_view), &compare_names);
  for (size_t k = 1; k < names.size(); ++k) {
    if (compare_names(&names[k], &names[k - 1]) == 0) return &names[k];
  }
  return nullptr;
}

template <class Word>
SITU_NOINLINE void copy_words_of(unsigned char const* from, int64_t from_step, unsigned char* to, int64_t to_step, int64_t count) {
  for (int64_t k = 0; k < count; ++k) std::memcpy(to + k * to_step, from + k * from_step, sizeof(Word));
}
/// Copies elements of 1, 2, 4 or 8 bytes that lie so many bytes apart.
inline void copy_words(int64_t size, unsigned char const* from, int64_t from_step, unsigned char* to, int64_t to_step, int64_t count) {
  if (size == 1) copy_words_of<uint8_t>(from, from_step, to, to_step, count);
  else if (size == 2) copy_words_of<uint16_t>(from, from_step, to, to_step, count);
  else if (size == 4) copy_words_of<uint32_t>(from, from_step, to, to_step, count);
  else copy_words_of<uint64_t>(from, from_step, to, to_step, count);
}

/// A counted pointer to something with a member `int64_t references`, which is 1 when it is made.
template <class X>
class Counted {
public:
  Counted() = default;
  explicit Counted(X* adopted) : x_(adopted) {}
  Counted(Counted const& other) noexcept : x_(other.x_) {
    if (x_) count_up(x_->references);
  }
  Counted(Counted&& other) noexcept : x_(std::exchange(other.x_, nullptr)) {}
  Counted& operator=(Counted other) noexcept {
    std::swap(x_, other.x_);
    return *this;
  }
  ~Counted() {
    if (x_ && count_down(x_->references)) delete x_;
  }
  X* operator->() const { return x_; }
  X& operator*() const { return *x_; }

private:
  X* x_ = nullptr;
};

[[gnu::cold]] inline char const* kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

class FileDescriptor {
public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(FileDescriptor const&) = delete;
  FileDescriptor& operator=(FileDescriptor const&) = delete;

  int get() const { return fd_; }
  int release() {
    int const fd = fd_;
    fd_ = -1;
    return fd;
  }

private:
  int fd_;
};

/// An ordinary file, open for reading.
///
/// Throws    IoError if it cannot be opened or is a folder, pipe, socket or device; opening never waits.
class InputFile {
public:
  [[gnu::cold]] explicit InputFile(FileContext const& context)
      : context_(context), file_(::open(context.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
    if (file_.get() < 0) context.fail_by_system("cannot be opened", errno, "a readable file is needed");
    struct ::stat status{};
    if (::fstat(file_.get(), &status) != 0) context.fail_by_system("cannot be examined", errno, "a readable file is needed");
    if (!S_ISREG(status.st_mode))
      context.fail("is not an ordinary file: ", kind_of_file(status.st_mode), " found; a regular file is needed");
    size_ = static_cast<int64_t>(status.st_size);
  }

  int64_t size() const { return size_; }

  /// Reads `bytes` bytes from `offset` on.
  ///
  /// Throws    IoError if the file has become shorter or the system reports an error.
  void read(void* to, int64_t offset, int64_t bytes) const {
    auto* at = static_cast<unsigned char*>(to);
    while (bytes > 0) {
      ssize_t const got = ::pread(file_.get(), at, static_cast<size_t>(bytes), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) context_.fail_by_system("cannot be read", errno, "a readable file is needed");
      if (got == 0)
        context_.fail("became shorter while it was read: it ends at byte ", offset, "; ", offset + bytes, " bytes are needed");
      at += got, offset += got, bytes -= got;
    }
  }

  /// The same for places of memory whose bytes lie one behind the other in the file: few calls of the system for many of them.
  [[gnu::cold]] void read_in_a_row(::iovec* places, int count, int64_t offset) const {
    while (count > 0) {
      int const some = count < 1024 ? count : 1024;
      ssize_t const read_bytes = ::preadv(file_.get(), places, some, static_cast<off_t>(offset));
      int64_t got = read_bytes > 0 ? static_cast<int64_t>(read_bytes) : 0;
      for (int k = 0; k < some; ++k) {
        int64_t const bytes = static_cast<int64_t>(places[k].iov_len), here = got < bytes ? got : bytes;
        if (here < bytes) read(static_cast<unsigned char*>(places[k].iov_base) + here, offset + here, bytes - here);  // the rest, or why not
        got -= here, offset += bytes;
      }
      places += some, count -= some;
    }
  }

  /// The same for many bytes, by several threads: what lies in the system's cache is copied at the memory's speed.
  void read_fast(void* to, int64_t offset, int64_t bytes) const {
    if (bytes < 8 * ReadPart::grain) return read(to, offset, bytes);
    int64_t failed = -1;
    cpu::launch(ReadPart{file_.get(), static_cast<unsigned char*>(to), offset, &failed}, bytes, ReadPart::grain);
    if (failed >= 0) read(static_cast<unsigned char*>(to) + failed, offset + failed, bytes - failed);  // says why
  }

  int descriptor() const { return file_.get(); }

private:
  /// What one thread reads. A part that ends early leaves where it ended.
  struct ReadPart {
    static constexpr int64_t grain = 1 << 20;
    int fd;
    unsigned char* to;
    int64_t offset;
    int64_t* failed;
    void operator()(int64_t first, int64_t last) const {
      while (first < last) {
        ssize_t const got = ::pread(fd, to + first, static_cast<size_t>(last - first), static_cast<off_t>(offset + first));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          int64_t earlier = __atomic_load_n(failed, __ATOMIC_RELAXED);
          while ((earlier < 0 || first < earlier) && !__atomic_compare_exchange_n(failed, &earlier, first, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
          return;
        }
        first += got;
      }
    }
  };

  FileContext context_;
  FileDescriptor file_;
  int64_t size_ = 0;
};

/// A file's bytes in the address space, read-only; null where the file system cannot do that.
class Mapping {
public:
  Mapping(InputFile const& file, int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* const at = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0) : MAP_FAILED;
    if (at != MAP_FAILED) bytes_at_ = static_cast<unsigned char const*>(at);
  }
  Mapping(Mapping const&) = delete;
  Mapping& operator=(Mapping const&) = delete;
  ~Mapping() {
    if (bytes_at_) ::munmap(const_cast<unsigned char*>(bytes_at_), bytes_);
  }
  unsigned char const* data() const { return bytes_at_; }

private:
  size_t bytes_;
  unsigned char const* bytes_at_ = nullptr;
};

/// Writes a file through a temporary one in the same folder that is renamed into place: readers see the old file or
/// the whole new one. An existing file keeps its permissions, a symbolic link is followed, also to a file that is not there yet.
///
/// Throws    IoError if the folder cannot be written, the disk is full, or the name belongs to something that is not
///           an ordinary file. The old file is then as it was, and the temporary one is removed.
class OutputFile {
public:
  [[gnu::cold]] explicit OutputFile(FileContext const& context) : context_(context), file_(-1) {
    struct ::stat status{};
    bool const exists = ::stat(context.path, &status) == 0;
    if (exists && !S_ISREG(status.st_mode))
      context.fail("is not an ordinary file: ", kind_of_file(status.st_mode), " found; a regular file or a new name is needed");
    char* const resolved = exists ? ::realpath(context.path, nullptr) : nullptr;
    target_.add(resolved ? resolved : context.path);
    std::free(resolved);
    if (!exists) follow_links();
    // The name does not grow with the target's, which may be as long as the file system allows.
    static unsigned counter = 0;
    int fd = -1;
    do {
      unsigned const number = __atomic_fetch_add(&counter, 1u, __ATOMIC_RELAXED);
      temporary_.clear();
      add_to(temporary_, folder(), ".situ-", ::getpid(), "-", number, ".tmp");
      if (target_.is_cut() || temporary_.is_cut()) throw std::bad_alloc();
      fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && (errno == EEXIST || errno == EINTR));
    if (fd < 0) context.fail_by_system("cannot be written", errno, "a writable folder is needed");
    file_ = fd;
    if (exists) ::fchmod(fd, status.st_mode & 0777);  // may fail: some file systems have no permissions
  }
  [[gnu::cold]] ~OutputFile() {
    if (file_ >= 0) {
      ::close(file_);
      ::unlink(temporary_.c_str());
    }
  }
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;

  void write(void const* from, int64_t bytes) {
    auto const* at = static_cast<unsigned char const*>(from);
    while (bytes > 0) {
      ssize_t const put = ::write(file_, at, static_cast<size_t>(bytes));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) context_.fail("cannot be written: ", std::strerror(errno), "; ", bytes, " more bytes are needed");
      at += put, bytes -= put;
    }
  }

  /// Writes over what was written before.
  void write_at(int64_t offset, void const* from, int64_t bytes) {
    auto const* at = static_cast<unsigned char const*>(from);
    while (bytes > 0) {
      ssize_t const put = ::pwrite(file_, at, static_cast<size_t>(bytes), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) context_.fail("cannot be written: ", std::strerror(errno), "; ", bytes, " more bytes are needed");
      at += put, offset += put, bytes -= put;
    }
  }

  /// Puts the file in its place. Without it, nothing has happened. `durable`: it is on the disk when this returns, and a
  /// machine that stops before has the old one.
  [[gnu::cold]] void commit(bool durable = false) {
    int const fd = file_;
    file_ = -1;
    int error = durable && ::fsync(fd) != 0 && errno != EINVAL ? errno : 0;  // EINVAL: a file system that cannot
    if (::close(fd) != 0 && error == 0) error = errno;
    if (error == 0 && std::rename(temporary_.c_str(), target_.c_str()) != 0) error = errno;
    if (error != 0) {
      ::unlink(temporary_.c_str());
      context_.fail_by_system("cannot be written", error, "a writable file is needed");
    }
    if (!durable) return;
    MessageText name;
    add_to(name, folder(), ".");
    FileDescriptor const opened(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
    if (opened.get() >= 0) ::fsync(opened.get());  // the name; may fail: some folders can be written and not read
  }

private:
  /// The target of links that lead to no file: what they say, from the folder that each is in.
  [[gnu::cold]] void follow_links() {
    char to[4096];
    for (int links = 0; links < 40; ++links) {  // as many as Linux follows
      ssize_t const length = ::readlink(target_.c_str(), to, sizeof to);
      if (length <= 0 || length == static_cast<ssize_t>(sizeof to)) return;
      MessageText next;
      add_to(next, to[0] == '/' ? std::string_view("") : folder(), std::string_view(to, static_cast<size_t>(length)));
      target_.clear();
      target_.add(next.c_str(), next.size());
      if (next.is_cut()) throw std::bad_alloc();
    }
  }
  /// Up to the last slash.
  std::string_view folder() const {
    char const* const slash = std::strrchr(target_.c_str(), '/');
    return {target_.c_str(), slash ? static_cast<size_t>(slash + 1 - target_.c_str()) : 0};
  }

  FileContext context_;
  MessageText target_, temporary_;
  int file_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

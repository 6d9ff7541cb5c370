/// Files as bytes: an input whose size is known before anything is allocated, an output that appears whole or not at
/// all.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <situ/config.hpp>
#include <situ/core/error.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What an error message begins with: the function that was called and the file it was given.
struct FileContext {
  char const* who;
  char const* path;

  [[noreturn]] SITU_NOINLINE void fail(std::string const& what) const {
    throw IoError(text(who, ": ", path, ": ", what));
  }
  [[noreturn]] SITU_NOINLINE void fail(char const* what, int error, char const* needed) const {
    fail(text(what, ": ", std::strerror(error), "; ", needed));
  }
};

inline char const* kind_of_file(mode_t mode) {
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
  explicit InputFile(FileContext const& context)
      : context_(context), file_(::open(context.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
    if (file_.get() < 0) context.fail("cannot be opened", errno, "a readable file is needed");
    struct ::stat status{};
    if (::fstat(file_.get(), &status) != 0) context.fail("cannot be examined", errno, "a readable file is needed");
    if (!S_ISREG(status.st_mode))
      context.fail(text("is not an ordinary file: ", kind_of_file(status.st_mode), " found; a regular file is needed"));
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
      if (got < 0) context_.fail("cannot be read", errno, "a readable file is needed");
      if (got == 0)
        context_.fail(text("became shorter while it was read: it ends at byte ", offset, "; ", offset + bytes,
                           " bytes are needed"));
      at += got, offset += got, bytes -= got;
    }
  }

private:
  FileContext context_;
  FileDescriptor file_;
  int64_t size_ = 0;
};

/// Writes a file through a temporary one in the same folder that is renamed into place: readers see the old file or
/// the whole new one. An existing file keeps its permissions, a symbolic link is followed.
///
/// Throws    IoError if the folder cannot be written, the disk is full, or the name belongs to something that is not
///           an ordinary file. The old file is then as it was, and the temporary one is removed.
class OutputFile {
public:
  explicit OutputFile(FileContext const& context) : context_(context), target_(context.path), file_(-1) {
    struct ::stat status{};
    bool const exists = ::stat(context.path, &status) == 0;
    if (exists && !S_ISREG(status.st_mode))
      context.fail(text("is not an ordinary file: ", kind_of_file(status.st_mode),
                        " found; a regular file or a new name is needed"));
    if (exists) {
      if (char* const resolved = ::realpath(context.path, nullptr)) {
        target_ = resolved;
        std::free(resolved);
      }
    }
    // The name does not grow with the target's, which may be as long as the file system allows.
    size_t const slash = target_.rfind('/');
    std::string const folder = slash == std::string::npos ? std::string() : target_.substr(0, slash + 1);
    static unsigned counter = 0;
    int fd = -1;
    do {
      unsigned const number = __atomic_fetch_add(&counter, 1u, __ATOMIC_RELAXED);
      temporary_ = folder + ".situ-" + std::to_string(::getpid()) + "-" + std::to_string(number) + ".tmp";
      fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && (errno == EEXIST || errno == EINTR));
    if (fd < 0) context.fail("cannot be written", errno, "a writable folder is needed");
    file_ = fd;
    if (exists) ::fchmod(fd, status.st_mode & 0777);  // may fail: some file systems have no permissions
  }
  ~OutputFile() {
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
      if (put < 0) context_.fail("cannot be written", errno, text(bytes, " more bytes are needed").c_str());
      at += put, bytes -= put;
    }
  }

  /// Puts the file in its place. Without it, nothing has happened.
  void commit() {
    int const fd = file_;
    file_ = -1;
    if (::close(fd) != 0 || std::rename(temporary_.c_str(), target_.c_str()) != 0) {
      int const error = errno;
      ::unlink(temporary_.c_str());
      context_.fail("cannot be written", error, "a writable file is needed");
    }
  }

private:
  FileContext context_;
  std::string target_, temporary_;
  int file_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

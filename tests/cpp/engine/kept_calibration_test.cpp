// What `railweave calibrate` has kept: which file counts, what makes it void, what is refused.
#include "kept_calibration.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace railweave {
namespace {

namespace fs = std::filesystem;
using Settings = std::vector<std::pair<std::string, std::string>>;

class KeptCalibrationTest : public testing::Test {
 protected:
  KeptCalibrationTest() {
    std::string name = (fs::temp_directory_path() / "keptXXXXXX").string();
    root_ = ::mkdtemp(name.data());
    library_ = root_ / "librailweave_cuda.so";
    std::ofstream(library_) << "kernels";
    own_ = folder(root_ / ("railweave-" + std::to_string(::geteuid())), fs::perms::owner_all);
    if (const char* before = std::getenv("XDG_RUNTIME_DIR"); before != nullptr) runtime_ = before;
    ::setenv("XDG_RUNTIME_DIR", root_.c_str(), 1);
  }
  ~KeptCalibrationTest() override {
    if (runtime_.empty())
      ::unsetenv("XDG_RUNTIME_DIR");
    else
      ::setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
    fs::remove_all(root_);
  }

  static fs::path folder(const fs::path& path, fs::perms permissions) {
    fs::create_directory(path);
    fs::permissions(path, permissions);
    return path;
  }
  std::string now() const { return calibration_fingerprint(library_); }
  static void keep(const fs::path& where, const std::string& text) { std::ofstream(where / "calibration") << text; }
  static std::string blocks(int count) { return "{\"gpu_blocks\": \"" + std::to_string(count) + "\"}\nwhat was measured\n"; }
  KeptCalibration find() const { return find_calibration(library_, root_ / "for-all"); }

  fs::path root_, own_, library_;
  std::string runtime_;
};

TEST_F(KeptCalibrationTest, NothingWhereNothingIsKept) {
  const KeptCalibration found = find();
  EXPECT_EQ(found.path, "");
  EXPECT_EQ(found.problem, "");
  EXPECT_FALSE(found.damaged);
}

TEST_F(KeptCalibrationTest, WhatIsKeptCountsWhileTheMachineStaysAsItIs) {
  keep(own_, now() + "\n" + blocks(8));
  EXPECT_EQ(find().path, own_ / "calibration");
  EXPECT_EQ(find().settings, (Settings{{"gpu_blocks", "8"}}));
  // Another build of the library; its text is of another length, and of another time.
  std::ofstream(library_) << "other kernels";
  EXPECT_EQ(find().settings, Settings{});
  EXPECT_EQ(find().path, "");
  EXPECT_FALSE(find().damaged);
  EXPECT_EQ(find().problem,
            (own_ / "calibration").string() + " does not hold here (another build of Railweave); `railweave calibrate` measures again");
}

TEST_F(KeptCalibrationTest, TheTimeOfTheLibraryCounts) {
  keep(own_, now() + "\n" + blocks(8));
  const timespec later[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, library_.c_str(), later, 0), 0);
  EXPECT_EQ(find().path, "");
}

TEST_F(KeptCalibrationTest, SaysWhatIsAnother) {
  for (const char* part : {"boot", "driver", "set of GPUs", "set of PCI devices", "build of Railweave"}) {
    std::string there = now();
    const std::size_t begin = there.find(std::string(part) + ": ");
    ASSERT_NE(begin, std::string::npos) << there;
    there.insert(std::min(there.find("; ", begin), there.size()), "0");
    keep(own_, there + "\n" + blocks(8));
    EXPECT_NE(find().problem.find("(another " + std::string(part) + ")"), std::string::npos) << find().problem;
    EXPECT_EQ(find().path, "");
  }
  for (const char* text : {"", "\n", "{}", "bandwidth; a; b; c; d; e; f\n{}"}) {
    keep(own_, text);
    EXPECT_NE(find().problem.find("(another form of the file)"), std::string::npos) << find().problem;
  }
}

TEST_F(KeptCalibrationTest, RootsCountsForAllAndBeforeTheOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const fs::path all = folder(root_ / "for-all", fs::perms{0755});
  keep(own_, now() + "\n" + blocks(8));
  EXPECT_EQ(find().path, own_ / "calibration");
  keep(all, now() + "\n" + blocks(4));
  EXPECT_EQ(find().settings, (Settings{{"gpu_blocks", "4"}}));
  keep(all, "of before\n" + blocks(4));
  EXPECT_EQ(find().settings, (Settings{{"gpu_blocks", "8"}}));
  EXPECT_EQ(find().problem, "");
  keep(all, now() + "\n" + blocks(4));
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(find().path, all / "calibration");
}

// Where a container has the folder for all mounted read-only, root without a runtime folder keeps it in /tmp.
TEST_F(KeptCalibrationTest, RootsOwnCountsBesideAnEmptyFolderForAll) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const fs::path own = "/tmp/railweave-0";
  const bool made = fs::create_directory(own);
  if (!made && fs::exists(own / "calibration")) GTEST_SKIP() << "one is kept on this machine";
  fs::permissions(own, fs::perms::owner_all);
  folder(root_ / "for-all", fs::perms{0755});
  ::unsetenv("XDG_RUNTIME_DIR");
  keep(own, now() + "\n" + blocks(8));
  const std::string found = find().path;
  fs::remove(own / "calibration");
  if (made) fs::remove(own);
  EXPECT_EQ(found, own / "calibration");
}

TEST_F(KeptCalibrationTest, FoldersThatOthersCanWriteAreNotTrusted) {
  keep(own_, now() + "\n" + blocks(8));
  fs::permissions(own_, fs::perms{0755});
  EXPECT_EQ(find().path, "");
  fs::permissions(own_, fs::perms::owner_all);
  EXPECT_NE(find().path, "");
  fs::rename(own_, root_ / "elsewhere");
  fs::create_directory_symlink(root_ / "elsewhere", own_);
  EXPECT_EQ(find().path, "");
  if (::geteuid() != 0) return;
  const fs::path all = folder(root_ / "for-all", fs::perms{0777});
  keep(all, now() + "\n" + blocks(4));
  EXPECT_EQ(find().path, "");
  fs::permissions(all, fs::perms{0755});
  EXPECT_NE(find().path, "");
  ASSERT_EQ(::chown(all.c_str(), 12345, 12345), 0);
  EXPECT_EQ(find().path, "");
}

struct Damage {
  const char* line;
  const char* says;
};

TEST_F(KeptCalibrationTest, DamageIsNamedWithItsPlace) {
  const std::string file = (own_ / "calibration").string();
  for (const Damage& damage : {
           Damage{"", ":2:1: not JSON"},
           Damage{R"({"gpu_blocks": "8")", ":2:19: not JSON"},
           Damage{"[]", ":2:1: no object; expected settings by name"},
           Damage{R"({"gpu_blocks": 8})", ":2:16: gpu_blocks: 8; expected a string"},
           Damage{R"({"gpu_blocks": "0"})", ":2: setting gpu_blocks (RAILWEAVE_GPU_BLOCKS): '0'; expected a number of blocks from 1 to 64"},
           Damage{R"({"gpu_blox": "8"})", ":2:1: unknown setting 'gpu_blox'; expected settings by name"},
           Damage{R"({"gpu_blocks": "8", "gpu_blocks": "8"})", "stands twice"},
           Damage{"{\"gpu_blocks\": \"\xff\"}", ":2:17: not JSON"},
       }) {
    keep(own_, now() + "\n" + damage.line + "\n");
    const KeptCalibration found = find();
    EXPECT_TRUE(found.damaged) << damage.line;
    EXPECT_EQ(found.path, "");
    EXPECT_EQ(found.settings, Settings{});
    EXPECT_TRUE(found.problem.starts_with(file)) << found.problem;
    EXPECT_NE(found.problem.find(damage.says), std::string::npos) << found.problem;
  }
}

TEST_F(KeptCalibrationTest, WhatIsNoReadableFileIsDamage) {
  const fs::path file = own_ / "calibration";
  fs::create_directory(file);
  EXPECT_TRUE(find().damaged);
  EXPECT_EQ(find().problem, file.string() + ": not a file; expected what `railweave calibrate` keeps");
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // nobody writes it, and nobody waits for that
  EXPECT_TRUE(find().damaged);
  fs::remove(file);
  keep(own_, std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(find().problem, file.string() + ": more than 1048576 bytes; expected what `railweave calibrate` keeps");
  fs::remove(file);
  fs::create_symlink(file, file);
  EXPECT_NE(find().problem.find(": cannot be read: "), std::string::npos) << find().problem;
}

}  // namespace
}  // namespace railweave

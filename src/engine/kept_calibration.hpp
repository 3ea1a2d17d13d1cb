// What `railweave calibrate` has kept of this machine (docs/calibrate.md): where it lies, whether it still holds, what follows from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace railweave {

// Only root can make a folder there: what lies in it is for all users.
inline constexpr const char* kKeptForAll = "/run/railweave-placement";

// This machine since it booted, and the library whose kernels were measured (the path of librailweave_cuda.so), in one line. While the line
// stays equal, what was measured holds.
std::string calibration_fingerprint(const std::string& library);

struct KeptCalibration {
  std::string path;                                           // of the file that holds; empty: there is none
  std::vector<std::pair<std::string, std::string>> settings;  // by name, as the table of settings has them

  std::string problem;   // why there is none although there is a file
  bool damaged = false;  // of a file that should hold, so that somebody should look at it
};

// Looks in the folder for all users, then in that of this user. Nothing that a file can hold makes it throw.
KeptCalibration find_calibration(const std::string& library, const std::string& for_all = kKeptForAll);

}  // namespace railweave

// Made by generate_forwarding.py from NCCL's headers; change that, not this.
#include "group.hpp"
#include "nccl_abi.hpp"
#include "real_nccl.hpp"

#define RAILWEAVE_FORWARD extern "C" __attribute__((visibility("default")))

namespace {

using namespace railweave::nccl;

// ncclTeam_t
struct Team {
  int ranks, rank, stride;
};

}  // namespace

RAILWEAVE_FORWARD ncclResult_t ncclAllGather(void* p0, void* p1, std::size_t p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, void*, void*)> real("ncclAllGather");
  note_work(p4, p5);
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t ncclAllGatherConfig(void* p0, void* p1, std::size_t p2, int p3, void* p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, void*, void*, void*)> real("ncclAllGatherConfig");
  note_work(p4, p5);
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t ncclAllReduce(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("ncclAllReduce");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t ncclAllReduceConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("ncclAllReduceConfig");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t ncclBcast(void* p0, std::size_t p1, int p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, std::size_t, int, int, void*, void*)> real("ncclBcast");
  note_work(p4, p5);
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t ncclBroadcast(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("ncclBroadcast");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t ncclBroadcastConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("ncclBroadcastConfig");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t ncclCftBarrierCreateRequirement(Team p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(Team, int, void*, void*)> real("ncclCftBarrierCreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommCount(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclCommCount");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommCuDevice(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclCommCuDevice");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommMemStats(void* p0, int p1, void* p2) {
  static const Real<ncclResult_t(void*, int, void*)> real("ncclCommMemStats");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommQueryProperties(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclCommQueryProperties");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommResume(void* p0) {
  static const Real<ncclResult_t(void*)> real("ncclCommResume");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommSuspend(void* p0, int p1) {
  static const Real<ncclResult_t(void*, int)> real("ncclCommSuspend");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclCommUserRank(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclCommUserRank");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclDevCommCreate(void* p0, void* p1, void* p2) {
  static const Real<ncclResult_t(void*, void*, void*)> real("ncclDevCommCreate");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t ncclDevCommDestroy(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclDevCommDestroy");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclGather(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("ncclGather");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t ncclGatherConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("ncclGatherConfig");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetCftDeviceLeInfo(void* p0, std::size_t p1, int p2, Team p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, std::size_t, int, Team, void*, void*)> real("ncclGetCftDeviceLeInfo");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD const char* ncclGetErrorString(ncclResult_t p0) {
  static const auto real = reinterpret_cast<const char* (*)(ncclResult_t)>(real_symbol("ncclGetErrorString"));
  if (real == nullptr) {
    missing("ncclGetErrorString");
    return "";
  }
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetLsaDevicePointer(void* p0, std::size_t p1, int p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, int, void*)> real("ncclGetLsaDevicePointer");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetLsaMultimemDevicePointer(void* p0, std::size_t p1, void* p2) {
  static const Real<ncclResult_t(void*, std::size_t, void*)> real("ncclGetLsaMultimemDevicePointer");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetMultimemDeviceLeInfo(void* p0, std::size_t p1, void* p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, void*, void*)> real("ncclGetMultimemDeviceLeInfo");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetMultimemDevicePointer(void* p0, std::size_t p1, void* p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, void*, void*)> real("ncclGetMultimemDevicePointer");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetPeerDeviceLeInfo(void* p0, std::size_t p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(void*, std::size_t, int, void*, void*)> real("ncclGetPeerDeviceLeInfo");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetPeerDevicePointer(void* p0, std::size_t p1, int p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, int, void*)> real("ncclGetPeerDevicePointer");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclGetVersion(void* p0) {
  static const Real<ncclResult_t(void*)> real("ncclGetVersion");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t ncclGinBarrierCreateRequirement(void* p0, Team p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(void*, Team, int, void*, void*)> real("ncclGinBarrierCreateRequirement");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t ncclGinInboxA2ACreateRequirement(Team p0, int p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(Team, int, int, void*, void*)> real("ncclGinInboxA2ACreateRequirement");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t ncclGinOutboxCreateRequirement(int p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(int, int, void*, void*)> real("ncclGinOutboxCreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD int ncclLLA2ACalcSlots(int p0, int p1) {
  static const auto real = reinterpret_cast<int (*)(int, int)>(real_symbol("ncclLLA2ACalcSlots"));
  if (real == nullptr) {
    missing("ncclLLA2ACalcSlots");
    return {};
  }
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclLLA2ACreateRequirement(int p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(int, int, void*, void*)> real("ncclLLA2ACreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclLsaBarrierCreateRequirement(Team p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(Team, int, void*, void*)> real("ncclLsaBarrierCreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclMemAlloc(void* p0, std::size_t p1) {
  static const Real<ncclResult_t(void*, std::size_t)> real("ncclMemAlloc");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclMemFree(void* p0) {
  static const Real<ncclResult_t(void*)> real("ncclMemFree");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamBind(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamBind");
  return real(p0, p1);
}

RAILWEAVE_FORWARD void ncclParamDumpAll() {
  static const auto real = reinterpret_cast<void (*)()>(real_symbol("ncclParamDumpAll"));
  if (real == nullptr) {
    missing("ncclParamDumpAll");
    return;
  }
  real();
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGet(void* p0, void* p1, int p2, void* p3) {
  static const Real<ncclResult_t(void*, void*, int, void*)> real("ncclParamGet");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetAllParameterKeys(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetAllParameterKeys");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetI16(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetI16");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetI32(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetI32");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetI64(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetI64");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetI8(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetI8");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetParameter(void* p0, void* p1, void* p2) {
  static const Real<ncclResult_t(void*, void*, void*)> real("ncclParamGetParameter");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetStr(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetStr");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetU16(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetU16");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetU32(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetU32");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetU64(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetU64");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclParamGetU8(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("ncclParamGetU8");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclPutSignal(void* p0, std::size_t p1, int p2, int p3, void* p4, std::size_t p5, int p6, int p7,
                                             unsigned p8, void* p9, void* p10) {
  static const Real<ncclResult_t(void*, std::size_t, int, int, void*, std::size_t, int, int, unsigned, void*, void*)> real("ncclPutSignal");
  note_work(p9, p10);
  return real(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10);
}

RAILWEAVE_FORWARD ncclResult_t ncclRedOpCreatePreMulSum(void* p0, void* p1, int p2, int p3, void* p4) {
  static const Real<ncclResult_t(void*, void*, int, int, void*)> real("ncclRedOpCreatePreMulSum");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t ncclRedOpDestroy(int p0, void* p1) {
  static const Real<ncclResult_t(int, void*)> real("ncclRedOpDestroy");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t ncclReduce(void* p0, void* p1, std::size_t p2, int p3, int p4, int p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, int, void*, void*)> real("ncclReduce");
  note_work(p6, p7);
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t ncclReduceConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, int p5, void* p6, void* p7, void* p8) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, int, void*, void*, void*)> real("ncclReduceConfig");
  note_work(p6, p7);
  return real(p0, p1, p2, p3, p4, p5, p6, p7, p8);
}

RAILWEAVE_FORWARD ncclResult_t ncclReduceScatter(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("ncclReduceScatter");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t ncclReduceScatterConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("ncclReduceScatterConfig");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD void ncclResetDebugInit() {
  static const auto real = reinterpret_cast<void (*)()>(real_symbol("ncclResetDebugInit"));
  if (real == nullptr) {
    missing("ncclResetDebugInit");
    return;
  }
  real();
}

RAILWEAVE_FORWARD ncclResult_t ncclScatter(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("ncclScatter");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t ncclScatterConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("ncclScatterConfig");
  note_work(p5, p6);
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t ncclSetEncryption(void* p0) {
  static const Real<ncclResult_t(void*)> real("ncclSetEncryption");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t ncclSignal(int p0, int p1, int p2, unsigned p3, void* p4, void* p5) {
  static const Real<ncclResult_t(int, int, int, unsigned, void*, void*)> real("ncclSignal");
  note_work(p4, p5);
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD Team ncclTeamCft(void* p0, int p1) {
  static const auto real = reinterpret_cast<Team (*)(void*, int)>(real_symbol("ncclTeamCft"));
  if (real == nullptr) {
    missing("ncclTeamCft");
    return {};
  }
  return real(p0, p1);
}

RAILWEAVE_FORWARD Team ncclTeamCftMultimem(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("ncclTeamCftMultimem"));
  if (real == nullptr) {
    missing("ncclTeamCftMultimem");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD Team ncclTeamLsa(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("ncclTeamLsa"));
  if (real == nullptr) {
    missing("ncclTeamLsa");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD Team ncclTeamRail(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("ncclTeamRail"));
  if (real == nullptr) {
    missing("ncclTeamRail");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD int ncclTeamRankToLsa(void* p0, Team p1, int p2) {
  static const auto real = reinterpret_cast<int (*)(void*, Team, int)>(real_symbol("ncclTeamRankToLsa"));
  if (real == nullptr) {
    missing("ncclTeamRankToLsa");
    return {};
  }
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD int ncclTeamRankToWorld(void* p0, Team p1, int p2) {
  static const auto real = reinterpret_cast<int (*)(void*, Team, int)>(real_symbol("ncclTeamRankToWorld"));
  if (real == nullptr) {
    missing("ncclTeamRankToWorld");
    return {};
  }
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD Team ncclTeamWorld(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("ncclTeamWorld"));
  if (real == nullptr) {
    missing("ncclTeamWorld");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t ncclWaitSignal(int p0, void* p1, void* p2, void* p3) {
  static const Real<ncclResult_t(int, void*, void*, void*)> real("ncclWaitSignal");
  note_work(p2, p3);
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t ncclWinGetUserPtr(void* p0, void* p1, void* p2) {
  static const Real<ncclResult_t(void*, void*, void*)> real("ncclWinGetUserPtr");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t pncclAllGather(void* p0, void* p1, std::size_t p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, void*, void*)> real("pncclAllGather");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclAllGatherConfig(void* p0, void* p1, std::size_t p2, int p3, void* p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, void*, void*, void*)> real("pncclAllGatherConfig");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclAllReduce(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("pncclAllReduce");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclAllReduceConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("pncclAllReduceConfig");
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t pncclAlltoAll(void* p0, void* p1, std::size_t p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, void*, void*)> real("pncclAlltoAll");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclAlltoAllConfig(void* p0, void* p1, std::size_t p2, int p3, void* p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, void*, void*, void*)> real("pncclAlltoAllConfig");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclBcast(void* p0, std::size_t p1, int p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, std::size_t, int, int, void*, void*)> real("pncclBcast");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclBroadcast(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("pncclBroadcast");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclBroadcastConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("pncclBroadcastConfig");
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t pncclCftBarrierCreateRequirement(Team p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(Team, int, void*, void*)> real("pncclCftBarrierCreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommAbort(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclCommAbort");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommCount(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommCount");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommCuDevice(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommCuDevice");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommDeregister(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommDeregister");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommDestroy(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclCommDestroy");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommFinalize(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclCommFinalize");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommGetAsyncError(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommGetAsyncError");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommGetUniqueId(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommGetUniqueId");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommGrow(void* p0, int p1, void* p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, int, void*, int, void*, void*)> real("pncclCommGrow");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommInitAll(void* p0, int p1, void* p2) {
  static const Real<ncclResult_t(void*, int, void*)> real("pncclCommInitAll");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommInitRank(void* p0, int p1, ncclUniqueId p2, int p3) {
  static const Real<ncclResult_t(void*, int, ncclUniqueId, int)> real("pncclCommInitRank");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommInitRankConfig(void* p0, int p1, ncclUniqueId p2, int p3, void* p4) {
  static const Real<ncclResult_t(void*, int, ncclUniqueId, int, void*)> real("pncclCommInitRankConfig");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommInitRankScalable(void* p0, int p1, int p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, int, int, int, void*, void*)> real("pncclCommInitRankScalable");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommMemStats(void* p0, int p1, void* p2) {
  static const Real<ncclResult_t(void*, int, void*)> real("pncclCommMemStats");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommQueryProperties(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommQueryProperties");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommRegister(void* p0, void* p1, std::size_t p2, void* p3) {
  static const Real<ncclResult_t(void*, void*, std::size_t, void*)> real("pncclCommRegister");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommResume(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclCommResume");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommRevoke(void* p0, int p1) {
  static const Real<ncclResult_t(void*, int)> real("pncclCommRevoke");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommShrink(void* p0, void* p1, int p2, void* p3, void* p4, int p5) {
  static const Real<ncclResult_t(void*, void*, int, void*, void*, int)> real("pncclCommShrink");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommSplit(void* p0, int p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(void*, int, int, void*, void*)> real("pncclCommSplit");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommSuspend(void* p0, int p1) {
  static const Real<ncclResult_t(void*, int)> real("pncclCommSuspend");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommUserRank(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommUserRank");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommWindowDeregister(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclCommWindowDeregister");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclCommWindowRegister(void* p0, void* p1, std::size_t p2, void* p3, int p4) {
  static const Real<ncclResult_t(void*, void*, std::size_t, void*, int)> real("pncclCommWindowRegister");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclDevCommCreate(void* p0, void* p1, void* p2) {
  static const Real<ncclResult_t(void*, void*, void*)> real("pncclDevCommCreate");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t pncclDevCommDestroy(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclDevCommDestroy");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclGather(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("pncclGather");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclGatherConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("pncclGatherConfig");
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetCftDeviceLeInfo(void* p0, std::size_t p1, int p2, Team p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, std::size_t, int, Team, void*, void*)> real("pncclGetCftDeviceLeInfo");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD const char* pncclGetErrorString(ncclResult_t p0) {
  static const auto real = reinterpret_cast<const char* (*)(ncclResult_t)>(real_symbol("pncclGetErrorString"));
  if (real == nullptr) {
    missing("pncclGetErrorString");
    return "";
  }
  return real(p0);
}

RAILWEAVE_FORWARD const char* pncclGetLastError(void* p0) {
  static const auto real = reinterpret_cast<const char* (*)(void*)>(real_symbol("pncclGetLastError"));
  if (real == nullptr) {
    missing("pncclGetLastError");
    return "";
  }
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetLsaDevicePointer(void* p0, std::size_t p1, int p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, int, void*)> real("pncclGetLsaDevicePointer");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetLsaMultimemDevicePointer(void* p0, std::size_t p1, void* p2) {
  static const Real<ncclResult_t(void*, std::size_t, void*)> real("pncclGetLsaMultimemDevicePointer");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetMultimemDeviceLeInfo(void* p0, std::size_t p1, void* p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, void*, void*)> real("pncclGetMultimemDeviceLeInfo");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetMultimemDevicePointer(void* p0, std::size_t p1, void* p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, void*, void*)> real("pncclGetMultimemDevicePointer");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetPeerDeviceLeInfo(void* p0, std::size_t p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(void*, std::size_t, int, void*, void*)> real("pncclGetPeerDeviceLeInfo");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetPeerDevicePointer(void* p0, std::size_t p1, int p2, void* p3) {
  static const Real<ncclResult_t(void*, std::size_t, int, void*)> real("pncclGetPeerDevicePointer");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetUniqueId(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclGetUniqueId");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclGetVersion(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclGetVersion");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclGinBarrierCreateRequirement(void* p0, Team p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(void*, Team, int, void*, void*)> real("pncclGinBarrierCreateRequirement");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclGinInboxA2ACreateRequirement(Team p0, int p1, int p2, void* p3, void* p4) {
  static const Real<ncclResult_t(Team, int, int, void*, void*)> real("pncclGinInboxA2ACreateRequirement");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclGinOutboxCreateRequirement(int p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(int, int, void*, void*)> real("pncclGinOutboxCreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclGroupEnd() {
  static const Real<ncclResult_t()> real("pncclGroupEnd");
  return real();
}

RAILWEAVE_FORWARD ncclResult_t pncclGroupSimulateEnd(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclGroupSimulateEnd");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclGroupStart() {
  static const Real<ncclResult_t()> real("pncclGroupStart");
  return real();
}

RAILWEAVE_FORWARD int pncclLLA2ACalcSlots(int p0, int p1) {
  static const auto real = reinterpret_cast<int (*)(int, int)>(real_symbol("pncclLLA2ACalcSlots"));
  if (real == nullptr) {
    missing("pncclLLA2ACalcSlots");
    return {};
  }
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclLLA2ACreateRequirement(int p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(int, int, void*, void*)> real("pncclLLA2ACreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclLsaBarrierCreateRequirement(Team p0, int p1, void* p2, void* p3) {
  static const Real<ncclResult_t(Team, int, void*, void*)> real("pncclLsaBarrierCreateRequirement");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclMemAlloc(void* p0, std::size_t p1) {
  static const Real<ncclResult_t(void*, std::size_t)> real("pncclMemAlloc");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclMemFree(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclMemFree");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamBind(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamBind");
  return real(p0, p1);
}

RAILWEAVE_FORWARD void pncclParamDumpAll() {
  static const auto real = reinterpret_cast<void (*)()>(real_symbol("pncclParamDumpAll"));
  if (real == nullptr) {
    missing("pncclParamDumpAll");
    return;
  }
  real();
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGet(void* p0, void* p1, int p2, void* p3) {
  static const Real<ncclResult_t(void*, void*, int, void*)> real("pncclParamGet");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetAllParameterKeys(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetAllParameterKeys");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetI16(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetI16");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetI32(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetI32");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetI64(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetI64");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetI8(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetI8");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetParameter(void* p0, void* p1, void* p2) {
  static const Real<ncclResult_t(void*, void*, void*)> real("pncclParamGetParameter");
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetStr(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetStr");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetU16(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetU16");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetU32(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetU32");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetU64(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetU64");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclParamGetU8(void* p0, void* p1) {
  static const Real<ncclResult_t(void*, void*)> real("pncclParamGetU8");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclPutSignal(void* p0, std::size_t p1, int p2, int p3, void* p4, std::size_t p5, int p6, int p7,
                                              unsigned p8, void* p9, void* p10) {
  static const Real<ncclResult_t(void*, std::size_t, int, int, void*, std::size_t, int, int, unsigned, void*, void*)> real(
      "pncclPutSignal");
  return real(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10);
}

RAILWEAVE_FORWARD ncclResult_t pncclRecv(void* p0, std::size_t p1, int p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, std::size_t, int, int, void*, void*)> real("pncclRecv");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclRedOpCreatePreMulSum(void* p0, void* p1, int p2, int p3, void* p4) {
  static const Real<ncclResult_t(void*, void*, int, int, void*)> real("pncclRedOpCreatePreMulSum");
  return real(p0, p1, p2, p3, p4);
}

RAILWEAVE_FORWARD ncclResult_t pncclRedOpDestroy(int p0, void* p1) {
  static const Real<ncclResult_t(int, void*)> real("pncclRedOpDestroy");
  return real(p0, p1);
}

RAILWEAVE_FORWARD ncclResult_t pncclReduce(void* p0, void* p1, std::size_t p2, int p3, int p4, int p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, int, void*, void*)> real("pncclReduce");
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t pncclReduceConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, int p5, void* p6, void* p7, void* p8) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, int, void*, void*, void*)> real("pncclReduceConfig");
  return real(p0, p1, p2, p3, p4, p5, p6, p7, p8);
}

RAILWEAVE_FORWARD ncclResult_t pncclReduceScatter(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("pncclReduceScatter");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclReduceScatterConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("pncclReduceScatterConfig");
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD void pncclResetDebugInit() {
  static const auto real = reinterpret_cast<void (*)()>(real_symbol("pncclResetDebugInit"));
  if (real == nullptr) {
    missing("pncclResetDebugInit");
    return;
  }
  real();
}

RAILWEAVE_FORWARD ncclResult_t pncclScatter(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*)> real("pncclScatter");
  return real(p0, p1, p2, p3, p4, p5, p6);
}

RAILWEAVE_FORWARD ncclResult_t pncclScatterConfig(void* p0, void* p1, std::size_t p2, int p3, int p4, void* p5, void* p6, void* p7) {
  static const Real<ncclResult_t(void*, void*, std::size_t, int, int, void*, void*, void*)> real("pncclScatterConfig");
  return real(p0, p1, p2, p3, p4, p5, p6, p7);
}

RAILWEAVE_FORWARD ncclResult_t pncclSend(void* p0, std::size_t p1, int p2, int p3, void* p4, void* p5) {
  static const Real<ncclResult_t(void*, std::size_t, int, int, void*, void*)> real("pncclSend");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD ncclResult_t pncclSetEncryption(void* p0) {
  static const Real<ncclResult_t(void*)> real("pncclSetEncryption");
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclSignal(int p0, int p1, int p2, unsigned p3, void* p4, void* p5) {
  static const Real<ncclResult_t(int, int, int, unsigned, void*, void*)> real("pncclSignal");
  return real(p0, p1, p2, p3, p4, p5);
}

RAILWEAVE_FORWARD Team pncclTeamCft(void* p0, int p1) {
  static const auto real = reinterpret_cast<Team (*)(void*, int)>(real_symbol("pncclTeamCft"));
  if (real == nullptr) {
    missing("pncclTeamCft");
    return {};
  }
  return real(p0, p1);
}

RAILWEAVE_FORWARD Team pncclTeamCftMultimem(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("pncclTeamCftMultimem"));
  if (real == nullptr) {
    missing("pncclTeamCftMultimem");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD Team pncclTeamLsa(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("pncclTeamLsa"));
  if (real == nullptr) {
    missing("pncclTeamLsa");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD Team pncclTeamRail(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("pncclTeamRail"));
  if (real == nullptr) {
    missing("pncclTeamRail");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD int pncclTeamRankToLsa(void* p0, Team p1, int p2) {
  static const auto real = reinterpret_cast<int (*)(void*, Team, int)>(real_symbol("pncclTeamRankToLsa"));
  if (real == nullptr) {
    missing("pncclTeamRankToLsa");
    return {};
  }
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD int pncclTeamRankToWorld(void* p0, Team p1, int p2) {
  static const auto real = reinterpret_cast<int (*)(void*, Team, int)>(real_symbol("pncclTeamRankToWorld"));
  if (real == nullptr) {
    missing("pncclTeamRankToWorld");
    return {};
  }
  return real(p0, p1, p2);
}

RAILWEAVE_FORWARD Team pncclTeamWorld(void* p0) {
  static const auto real = reinterpret_cast<Team (*)(void*)>(real_symbol("pncclTeamWorld"));
  if (real == nullptr) {
    missing("pncclTeamWorld");
    return {};
  }
  return real(p0);
}

RAILWEAVE_FORWARD ncclResult_t pncclWaitSignal(int p0, void* p1, void* p2, void* p3) {
  static const Real<ncclResult_t(int, void*, void*, void*)> real("pncclWaitSignal");
  return real(p0, p1, p2, p3);
}

RAILWEAVE_FORWARD ncclResult_t pncclWinGetUserPtr(void* p0, void* p1, void* p2) {
  static const Real<ncclResult_t(void*, void*, void*)> real("pncclWinGetUserPtr");
  return real(p0, p1, p2);
}

// A device of torch whose memory is this machine's. What it asks of its users is what a GPU asks:
//  - tensors of an operator lie on one device (numbers of no dimension and indices excepted);
//  - numbers are drawn by a generator of its own;
//  - a process that is forked from one which has used it cannot use it;
//  - once backward has run, a process that is forked from this one cannot run it: autograd has a
//    thread for each device, which no copy has. That is so as soon as there is a device;
//  - what is asked for an index beyond the end answers nothing more (an assertion of the device);
//  - what runs on another stream is waited for by who synchronises, or reads numbers from the CPU.
// Each operator runs on the CPU, on copies.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(KIND, 0);
bool used = false;
std::vector<std::thread> streams;  // what is still at work
bool forked = false;
bool lost = false;

void answer() { TORCH_CHECK(!lost, "Second error: device-side assert triggered"); }

void synchronize() {
  for (auto& stream : streams) stream.join();
  streams.clear();
}

void release(void* memory) { std::free(memory); }

struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(!forked, "Cannot re-initialize the second device in forked subprocess.");
    answer();
    used = true;
    void* memory = bytes ? std::malloc(bytes) : nullptr;
    TORCH_CHECK(memory || !bytes, "The second device is out of memory.");
    return {memory, memory, &release, DEVICE};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

Memory memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return only(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = &used;  // any address: what is waited for has happened
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize(); }

  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void enlarge(const c10::Storage& storage, size_t bytes) {
  auto* kept = storage.unsafeGetStorageImpl();
  auto fresh = memory.allocate(bytes);
  std::memcpy(fresh.get(), kept->data(), std::min(bytes, kept->nbytes()));
  kept->set_data_ptr_noswap(std::move(fresh));
  kept->set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    enlarge(storage, bytes);
  }
};

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  const int64_t entries = tensor.storage().nbytes() / tensor.itemsize();
  const at::Tensor same =
      at::from_blob(tensor.storage().mutable_data(), {entries},
                    at::TensorOptions().dtype(tensor.dtype()))
          .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  same._set_conj(tensor.is_conj());
  same._set_neg(tensor.is_neg());
  return same;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.is_cpu()) synchronize();
  if (to.numel()) {
    const at::Tensor source = from.is_cpu() ? from : on_cpu(from);
    (to.is_cpu() ? to : on_cpu(to)).copy_(source);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& tensor) {
  synchronize();
  return on_cpu(tensor).item();
}

// Twice the numbers, on another stream, which nobody is told to wait for.
at::Tensor double_later(const at::Tensor& x) {
  const at::Tensor y = empty(x.sizes(), x.scalar_type(), {}, {}, {}, {});
  streams.emplace_back([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    on_cpu(y).copy_(on_cpu(x)).mul_(2);
  });
  return y;
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const auto bytes =
      at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) enlarge(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

// Their indices may lie on the CPU, and what is copied anywhere.
const std::set<std::string> MIXED = {"aten::index", "aten::_index_put_impl_", "aten::index_put",
                                     "aten::index_put_", "aten::_unsafe_index", "aten::copy_"};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().operator_name().name;
  bool here = false;
  bool elsewhere = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    here |= tensor.device() == DEVICE;
    elsewhere |= tensor.device() != DEVICE && tensor.dim() > 0;
  };
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor()) look(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
    }
    TORCH_CHECK(!value.isGenerator(), "Expected a 'second' device type for generator but found 'cpu'");
  }
  TORCH_CHECK(!(here && elsewhere) || MIXED.count(name),
              "Expected all tensors to be on the same device, but found at least two devices, "
              "second:0 and cpu! (in ", name, ")");
  answer();
  try {
    at::native::cpu_fallback(op, stack);
  } catch (const c10::Error& error) {
    lost = lost || std::strstr(error.what(), "out of ");  // bounds, or range
    throw;
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage",
         static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
}

TORCH_LIBRARY(second, m) { m.def("double_later(Tensor x) -> Tensor"); }

TORCH_LIBRARY_IMPL(second, PrivateUse1, m) { m.impl("double_later", &double_later); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// What resolves a conjugate copies it.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

const bool ready = [] {
  c10::SetAllocator(KIND, &memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  pthread_atfork(nullptr, nullptr, [] { forked = used; });
  return true;
}();

}  // namespace

extern "C" bool second_is_used() { return used; }
extern "C" bool second_is_lost() { return lost; }

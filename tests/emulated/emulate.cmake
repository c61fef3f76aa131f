# Device sources for the host: what stands as PTX in them becomes a call into block.hpp.
#   cmake -D from=<codegen/device> -D to=<folder> -P emulate.cmake
cmake_minimum_required(VERSION 3.25)
# a part of the instruction -> the statement in the line's place, with ! for its semicolons
set(instructions
  "cvt.f32.f16" "y = emulated::from_f16(x.bits)!"
  "cvt.rn.bf16.f32" "y.bits = emulated::to_bf16(x)!"
  "cvt.rn.bf16x2.f32" "y = u32(emulated::to_bf16(low)) | u32(emulated::to_bf16(high)) << 16!"
  "cvt.rn.f16.f32" "y.bits = emulated::to_f16(x)!"
  "cvt.rn.f16x2.f32" "y = u32(emulated::to_f16(low)) | u32(emulated::to_f16(high)) << 16!"
  "row.col.f32.bf16.bf16.f32" "emulated::multiply_add(c, a, b0, b1, true)!"
  "row.col.f32.f16.f16.f32" "emulated::multiply_add(c, a, b0, b1, false)!"
  "m8n8.x4.shared" "emulated::load_matrices(x, address, false)!"
  "m8n8.x4.trans" "emulated::load_matrices(x, address, true)!"
  "ex2.approx" "y = ::exp2f(x)!"
  "cp.async.cg" "emulated::copy_async(to, from, exists)!"
  "cp.async.ca" "emulated::copy_async(to, from, exists, 4)!"
  "red.relaxed.gpu.global.add.v4" "for (int e = 0! e < 4! ++e) tile<:lane * 4 + e:> += x<:e:>!"
  "cp.async.commit_group" "__device__ inline void end_copies() { emulated::end_copies()! }"
  "cp.async.wait_group" "template <int N> __device__ inline void wait_copies() { emulated::wait_copies(N)! }"
  "griddepcontrol" "!"
  "tid.x" "x = threadIdx.x!")

foreach(name integers core score attention mma attention_copies attention_mma attention_mma_gradient attention_decode_parts attention_decode)
  file(READ ${from}/${name}.cuh text)
  string(REPLACE ";" "\\;" text "${text}")
  string(REPLACE "extern __shared__" "extern" text "${text}")
  string(REPLACE "__shared__" "static" text "${text}")  # a block at a time: one memory for all
  string(REGEX REPLACE "\n *: \"" " : \"" text "${text}")  # operands in a line of their own
  string(REPLACE "return u32(__cvta_generic_to_shared(pointer))" "return emulated::shared_address(pointer)" text "${text}")
  string(REPLACE "#pragma unroll 1\n" "" text "${text}")
  string(REPLACE "#pragma unroll\n" "" text "${text}")
  string(REPLACE "[" "<:" text "${text}")  # a list's elements are not cut inside of brackets
  string(REPLACE "]" ":>" text "${text}")
  string(REPLACE "\n" ";" lines "${text}")
  set(out "")
  foreach(line IN LISTS lines)
    if(line MATCHES "asm( volatile)?\\(")
      set(found "")
      set(rules ${instructions})
      while(rules)
        list(POP_FRONT rules instruction statement)
        string(FIND "${line}" "${instruction}" at)
        if(at GREATER -1 AND NOT found)
          string(REPLACE "!" ";" found "${statement}")
        endif()
      endwhile()
      if(NOT found)
        message(FATAL_ERROR "${name}.cuh: no rule in emulate.cmake for: ${line}")
      endif()
      set(line "${found}")
    endif()
    string(APPEND out "${line}\n")
  endforeach()
  file(WRITE ${to}/${name}.cuh "${out}")
endforeach()

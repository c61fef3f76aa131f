// samite/samite.hpp: everything.
#pragma once
#include <samite/decode/speculative.hpp>
#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/model/checkpoint.hpp>
#include <samite/model/decoder.hpp>
#include <samite/model/drafter.hpp>
#include <samite/nn/decoder_layer.hpp>
#include <samite/plan/plan.hpp>
#include <samite/run/executor.hpp>
#include <samite/train/baseline.hpp>
#include <samite/train/data.hpp>
#include <samite/train/drafter_loss.hpp>
#include <samite/train/language_model.hpp>
#include <samite/train/progress.hpp>
#include <samite/train/trainer.hpp>

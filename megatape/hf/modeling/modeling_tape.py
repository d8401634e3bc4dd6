"""MegaTAPE language models for transformers: a decoder-only transformer with any position encoding.

attention_layer.py and layers.py have the parts of a layer. encodings.py names the class of the encoding, encoding.py is the
interface between encoding and model. An exported folder only needs torch and transformers: it contains the encoding's file from
training, and stand_ins.py replaces what that file imports.

Shapes: B batch, N new tokens, P cached tokens, K = P + N keys, D hidden size, H query heads, L key/value heads, R head size, W
width of a state channel. Besides the hidden states x [B, N, D], layers pass on the state e of the encoding. For TAPE, it is a
position tensor [B, N, L, W] that each layer updates.

The cache contains rotated keys, and [v | e] as values. Any transformers cache works if its values may be wider than its keys.
The dynamic cache reserves capacity (cache_layers.py).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from megatape.attention.rotation import PositionState
from megatape.distributed.mesh import SINGLE
from megatape.encodings.encoding import Encoding, Features, LayerBias, encodings_by_layer, positioned_layers

from .attention_layer import TapeAttention
from .cache import reserve_capacity, start_carry_of, store_start_carry
from .configuration_tape import TapeConfig
from .encodings import ENCODINGS
from .layers import TapeMLP, TapeRMSNorm
from .new_tokens import NewTokens, describe_tokens
from .positions import draw_positions


class TapeDecoderLayer(GradientCheckpointingLayer):
    """Pre-norm layer of attention and MLP. It updates the hidden states x, and the state e if the encoding moves it."""

    def __init__(self, config: TapeConfig, encoding: Encoding, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = TapeAttention(config, encoding, layer_idx)
        self.post_attention_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = TapeMLP(config)
        self.position = encoding.update(SINGLE)
        self.has_model_encoding = config.layer_kinds[layer_idx].encoding == config.encoding
        self.is_last = layer_idx == positioned_layers(config)[-1]
        self.num_channels = config.num_key_value_heads

    def forward(
        self, x: Tensor, e: Tensor | None, new: NewTokens, past_key_values: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states and the state after this layer. The last layer with the model's encoding does not update it.

        Args:
            x: Hidden states, [B, N, D].
            e: State of the encoding (Encoding.state), None if it has none.
            new: Properties of the new tokens.
            past_key_values: Cache.
        """
        attended, _, moved_state = self.self_attn(self.input_layernorm(x), e, new, past_key_values)
        x = x + attended
        m = self.mlp(self.post_attention_layernorm(x))
        if self.position is not None and not self.is_last:
            e = self.position(PositionState(e), moved_state, m).tensor(self.num_channels)
        return x + m, e


class TapePreTrainedModel(PreTrainedModel):
    """Settings for transformers. Flash and flex attention are not supported, because they need values as wide as keys."""

    config: TapeConfig
    config_class = TapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["TapeDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _can_record_outputs = {"hidden_states": TapeDecoderLayer, "attentions": TapeAttention}


def declared_initial_values(model: nn.Module) -> dict[nn.Module, dict[str, Any]]:
    """Return the initial values that an encoding's parameters declare: module -> name of the parameter -> values.

    transformers may replace a parameter before initializing it, and the new one has no declaration.
    """
    initial_values: dict[nn.Module, dict[str, Any]] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if hasattr(weight, "spec"):
                initial_values.setdefault(module, {})[name] = weight.spec.init
    return initial_values


class TapeModel(TapePreTrainedModel):
    """Embedding, decoder layers and final norm."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__(config)
        self.encoding: Encoding = ENCODINGS[config.encoding].load()(config)
        # Leave out padding_idx, which would only drop the gradient of the padding token's embedding.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = self.encoding.embedding(SINGLE)
        self.state_start = self.encoding.start(SINGLE)
        encodings = encodings_by_layer(self.encoding, lambda name: ENCODINGS[name].load()(config))
        self.layers = nn.ModuleList(TapeDecoderLayer(config, encoding, index) for index, encoding in enumerate(encodings))
        self.windows = [kind.window for kind in config.layer_kinds]
        self.has_bias = any(isinstance(module, LayerBias) for module in self.layers.modules())
        self.norm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self._initial_values = declared_initial_values(self)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        for name, initial in self._initial_values.get(module, {}).items():
            weight = getattr(module, name)
            if initial is None:
                init.normal_(weight, mean=0.0, std=self.config.initializer_range)
            elif isinstance(initial, int | float):
                init.constant_(weight, initial)
            else:
                init.uniform_(weight, initial.middle - initial.bound, initial.middle + initial.bound)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_length: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Compute the hidden states of tokens.

        Args:
            input_ids: Token ids, [B, N].
            attention_mask: [B, P + N], 0 on padding.
            position_ids: [B, N] or [1, N], by default counted from the first token in each row that is not padding.
            past_key_values: Cache.
            inputs_embeds: Embedded tokens instead of ids, [B, N, D].
            use_cache: Whether to return a cache.
            position_length: Final length of each text in tokens, [B] or [1], for encodings that need it.
            **kwargs: Options of transformers' decorators, such as output_hidden_states.

        Returns:
            Hidden states [B, N, D] after the final norm, and the cache.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = inputs_embeds
        if x is None:
            x = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        reserve_capacity(past_key_values, self.windows)

        new, position_ids = describe_tokens(self.config, x, attention_mask, position_ids, past_key_values, self.has_bias)
        num_drawn = self.encoding.positions(random_offset=False).drawn_from
        if num_drawn:
            position_ids = draw_positions(self.config, num_drawn, position_ids, position_length)
        if self.position_embedding is not None:
            x = self.position_embedding(x, position_ids)
        e, carry = self._initial_state(x, position_ids, new, past_key_values)

        initial = e
        for layer in self.layers:
            if layer.has_model_encoding:
                x, e = layer(x, e, new, past_key_values=past_key_values)
            else:
                # The other encodings read the state as it started.
                x, _ = layer(x, initial, new, past_key_values=past_key_values)
        if carry:
            store_start_carry(past_key_values, carry)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _initial_state(
        self, x: Tensor, position_ids: Tensor, new: NewTokens, past_key_values: Cache | None
    ) -> tuple[Tensor | None, Features]:
        """Return the state of the encoding before the first layer, and the carry for the tokens after the new ones."""
        e = self.encoding.state(position_ids)
        if e is not None:
            # All rows may share one row of positions.
            e = e.expand(x.shape[0], *e.shape[1:])
        if self.state_start is None:
            return e, ()
        content = x
        if new.padding is not None:
            content = x.masked_fill(new.padding[..., None], 0)
        delta, carry = self.state_start(content, new.document_starts, start_carry_of(past_key_values))
        return PositionState(e, delta).tensor(self.config.num_key_value_heads), carry


class TapeForCausalLM(TapePreTrainedModel, GenerationMixin):
    """Model with a language modeling head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: TapeConfig) -> None:
        super().__init__(config)
        self.model = TapeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits, and the loss if labels are given.

        Args:
            input_ids: See TapeModel.forward.
            attention_mask: See TapeModel.forward.
            position_ids: See TapeModel.forward.
            past_key_values: See TapeModel.forward.
            inputs_embeds: See TapeModel.forward.
            labels: input_ids [B, N], with -100 for tokens without a loss. They are shifted here.
            use_cache: See TapeModel.forward.
            logits_to_keep: Number of last tokens to compute logits for, 0 for all, or the indices of these tokens.
            **kwargs: Further arguments for TapeModel.forward and the loss function.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        tokens_with_logits = logits_to_keep
        if isinstance(logits_to_keep, int):
            tokens_with_logits = slice(-logits_to_keep, None)
        logits = self.lm_head(outputs.last_hidden_state[:, tokens_with_logits])
        cap = self.config.logit_softcap
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)

        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _get_static_cache_init_shape(self) -> None:
        """Return None, so that the static cache takes its shape from the first tokens: keys and values differ in width."""

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Make the cache, and pass the final length of the texts to an encoding that draws positions.

        If the cache comes from an earlier call, the length is unknown.
        """
        cache = model_kwargs.get("past_key_values")
        draws_positions = self.model.encoding.positions(random_offset=False).drawn_from > 0
        if draws_positions and (cache is None or cache.get_seq_length() == 0):
            mask = model_kwargs.get("attention_mask")
            num_padding = torch.zeros(1, dtype=torch.long)
            if mask is not None:
                num_padding = (mask == 0).sum(-1)
            # The last token is not added to the cache.
            model_kwargs["position_length"] = max_cache_length + 1 - num_padding
        prepared = super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        # Assisted generation tells the layers of the cache to keep all tokens before the first forward pass.
        reserve_capacity(model_kwargs.get("past_key_values"), self.model.windows)
        return prepared

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> Any:
        """Make the generator of an assistant model, which does not take `position_length`."""
        assistant_kwargs = {name: value for name, value in model_kwargs.items() if name != "position_length"}
        return super()._get_candidate_generator(*args, model_kwargs=assistant_kwargs, **kwargs)

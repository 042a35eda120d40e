package traces

import "go.opentelemetry.io/otel/attribute"

// Attributes of turngate. docs/traces.md has their meanings.
const (
	Rollout       = attribute.Key("turngate.rollout.id")
	TrainerName   = attribute.Key("turngate.trainer")
	Group         = attribute.Key("turngate.group")
	TaskName      = attribute.Key("turngate.task")
	AttemptNumber = attribute.Key("turngate.attempt")
	Worker        = attribute.Key("turngate.worker")
	Status        = attribute.Key("turngate.status")
	Reward        = attribute.Key("turngate.reward")
	Phase         = attribute.Key("turngate.phase")
	CallNumber    = attribute.Key("turngate.call")
	Tag           = attribute.Key("turngate.call.tag")
	Generation    = attribute.Key("turngate.call.generation")
)

// Attributes of the semantic conventions, those with gen_ai of version 0.1.0 of the
// conventions for generative AI.
const (
	ErrorType      = attribute.Key("error.type")
	ExitCode       = attribute.Key("process.exit.code")
	Operation      = attribute.Key("gen_ai.operation.name")
	Provider       = attribute.Key("gen_ai.provider.name")
	Conversation   = attribute.Key("gen_ai.conversation.id")
	AgentName      = attribute.Key("gen_ai.agent.name")
	AgentVersion   = attribute.Key("gen_ai.agent.version")
	RequestModel   = attribute.Key("gen_ai.request.model")
	RequestStream  = attribute.Key("gen_ai.request.stream")
	FinishReasons  = attribute.Key("gen_ai.response.finish_reasons")
	FirstChunk     = attribute.Key("gen_ai.response.time_to_first_chunk")
	InputTokens    = attribute.Key("gen_ai.usage.input_tokens")
	OutputTokens   = attribute.Key("gen_ai.usage.output_tokens")
	CachedTokens   = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	InputMessages  = attribute.Key("gen_ai.input.messages")
	OutputMessages = attribute.Key("gen_ai.output.messages")
	ToolName       = attribute.Key("gen_ai.tool.name")
	ToolType       = attribute.Key("gen_ai.tool.type")
	ToolArguments  = attribute.Key("gen_ai.tool.call.arguments")
	ToolResult     = attribute.Key("gen_ai.tool.call.result")
	TokenModality  = attribute.Key("gen_ai.token.modality")
)

// Metrics of the same conventions.
const (
	callDuration     = "gen_ai.client.inference.duration"
	callFirstChunk   = "gen_ai.client.inference.time_to_first_chunk"
	callInputTokens  = "gen_ai.client.inference.usage.input_tokens"
	callOutputTokens = "gen_ai.client.inference.usage.output_tokens"
	callCachedTokens = "gen_ai.client.inference.usage.cache_read.input_tokens"
)
